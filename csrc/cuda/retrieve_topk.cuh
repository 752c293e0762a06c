// Candidates of a search: a block scores kPassages passages and keeps the best of them for each of its queries. A
// candidate is one 64-bit key: the score in its upper half, the passage's place among all ranks, reversed, in its lower.
// Larger is better, and no two are equal. Scores are rounded step by step as ops/retrieve_topk.py says.
#pragma once
#include "cuda/kernel.cuh"
#include "cuda/numbers.cuh"

namespace pss::cuda {

constexpr int kPassages = int(kSearchBlock);  // a thread each
constexpr int kQueries = 8;                     // of a block, for which a passage is read once
constexpr int kColumnsOfTile = 32;              // floats, or words of four int8, of a passage that are in shared memory
constexpr int kTileStride = kColumnsOfTile + 1;
constexpr long long kNothing = -0x7fffffffffffffffLL - 1;

inline __device__ long long key_of(const SearchArgs& op, long long query, long long n, float score) {
  const long long mask = op.mask_rows[query];
  if (mask >= 0 && !op.masks[mask * op.num_passages + n]) return kNothing;
  const int bits = int(__float_as_uint(score + 0.0f));  // a zero has one sign
  const long long ordered = bits < 0 ? bits ^ 0x7fffffff : bits;
  return ordered * 4294967296LL + (4294967295LL - op.places[n]);
}

// Writes the best op.depth of the block's keys in order; a key's place is the number of those before it.
inline __device__ void keep_best(const SearchArgs& op, long long query, long long key, long long* keys) {
  __syncthreads();
  keys[threadIdx.x] = key;
  __syncthreads();
  int place = 0;
  for (int i = 0; i < kPassages; ++i) place += keys[i] > key || (keys[i] == key && i < int(threadIdx.x));
  if (place < op.depth) op.keys[(query * gridDim.x + blockIdx.x) * op.depth + place] = key;
}

struct Floats {
  using Element = float;
  static constexpr int kPer = 1;  // codes of an element
  static inline __device__ float load(const void* row, long long h, long long, int type) {
    return pss::cuda::load(row, h, type);
  }
  static inline __device__ float add(float v, float q, float sum) { return fmaf(q, v, sum); }
  static inline __device__ float score(float sum, const float*, long long) { return sum; }
};

struct Int8s {
  using Element = int;
  static constexpr int kPer = 4;
  static inline __device__ int load(const void* row, long long h, long long size, int) {
    const signed char* codes = static_cast<const signed char*>(row) + h;
    if (size % 4 == 0) return *reinterpret_cast<const int*>(codes);
    unsigned word = 0;
    for (int e = 0; e < 4 && h + e < size; ++e) word |= unsigned((unsigned char)codes[e]) << 8 * e;
    return int(word);
  }
  static inline __device__ int add(int v, int q, int sum) { return __dp4a(v, q, sum); }
  static inline __device__ float score(int sum, const float* scales, long long n) { return float(sum) * scales[n]; }
};

template <class T>
__global__ void dense_candidates(DenseArgs op) {
  using Element = typename T::Element;
  PSS_DYN_SMEM(long long, keys);
  Element* const tile = reinterpret_cast<Element*>(keys + kPassages);  // [kPassages][kTileStride]
  Element* const of_queries = tile + kPassages * kTileStride;          // [kQueries][kColumnsOfTile]
  const int thread = threadIdx.x;
  const long long first = (long long)blockIdx.x * kPassages, n = first + thread, query = (long long)blockIdx.y * kQueries;
  const int num_queries = int(op.num_queries - query < kQueries ? op.num_queries - query : kQueries);
  const long long columns = (op.size + T::kPer - 1) / T::kPer;
  Element sums[kQueries] = {};
  for (long long begin = 0; begin < columns; begin += kColumnsOfTile) {
    const int width = int(columns - begin < kColumnsOfTile ? columns - begin : kColumnsOfTile);
    __syncthreads();
    for (int i = thread; i < (kPassages + num_queries) * kColumnsOfTile; i += kPassages) {
      const int row = i / kColumnsOfTile, column = i % kColumnsOfTile;
      if (column >= width) continue;
      const long long h = (begin + column) * T::kPer;
      if (row >= kPassages) {
        const void* q = element(op.queries, (query + row - kPassages) * op.size, op.query_type);
        of_queries[(row - kPassages) * kColumnsOfTile + column] = T::load(q, h, op.size, op.query_type);
      } else if (first + row < op.to.num_passages) {
        const void* v = element(op.vectors, (first + row) * op.size, op.vector_type);
        tile[row * kTileStride + column] = T::load(v, h, op.size, op.vector_type);
      }
    }
    __syncthreads();
    if (n < op.to.num_passages)
      for (int column = 0; column < width; ++column) {
        const Element v = tile[thread * kTileStride + column];
#pragma unroll
        for (int q = 0; q < kQueries; ++q)
          if (q < num_queries) sums[q] = T::add(v, of_queries[q * kColumnsOfTile + column], sums[q]);
      }
  }
#pragma unroll
  for (int q = 0; q < kQueries; ++q) {
    if (q >= num_queries) break;
    const bool is_passage = n < op.to.num_passages;
    keep_best(op.to, query + q, is_passage ? key_of(op.to, query + q, n, T::score(sums[q], op.scales, n)) : kNothing, keys);
  }
}

// The first posting in [begin, end) of passage n or of one after it.
inline __device__ long long first_posting(const int* passages, long long begin, long long end, long long n) {
  while (begin < end) {
    const long long middle = (begin + end) / 2;
    if (passages[middle] < n) begin = middle + 1;
    else end = middle;
  }
  return begin;
}

// Terms one after another: a passage has a term once, so that no two threads add to the same score.
__global__ void sparse_candidates(SparseArgs op) {
  PSS_DYN_SMEM(long long, keys);
  float* const scores = reinterpret_cast<float*>(keys + kPassages);
  const long long first = (long long)blockIdx.x * kPassages, n = first + threadIdx.x, query = blockIdx.y;
  scores[threadIdx.x] = 0;
  for (long long at = op.starts[query]; at < op.starts[query + 1]; ++at) {
    const long long begin = op.indptr[op.terms[at]], end = op.indptr[op.terms[at] + 1];
    const long long low = first_posting(op.passages, begin, end, first);
    const long long posting = low + threadIdx.x;
    __syncthreads();
    if (posting < end && op.passages[posting] < first + kPassages) scores[op.passages[posting] - first] += op.weights[posting];
  }
  __syncthreads();
  const float score = scores[threadIdx.x];
  keep_best(op.to, query, score > 0 && n < op.to.num_passages ? key_of(op.to, query, n, score) : kNothing, keys);
}

}  // namespace pss::cuda
