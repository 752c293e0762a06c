// Attention of one token under one kv head and its group of query heads. Keys are taken in parts that begin at multiples
// of kPart. Few tokens: a block for each part, merged in order by a second kernel. Many: a block goes through all parts
// and merges them by the same formula. So a token's bits depend on its own context alone.
#pragma once
#include "cuda/kernel.cuh"
#include "cuda/numbers.cuh"

namespace pss::cuda {

constexpr int kTile = 128;                          // keys, and threads: a key each for scores, a feature each for values
constexpr int kColumns = int(kMaxHeadDim) / kTile;  // features of a thread
constexpr int kWarps = kTile / kWarp;
constexpr float kLog2E = 1.4426950408889634f;

template <int kGroup>
struct Sums {
  float peak[kGroup], total[kGroup], mixed[kGroup][kColumns];
};

template <int kGroup>
inline __device__ void clear(Sums<kGroup>& sums) {
  for (int g = 0; g < kGroup; ++g) {
    sums.peak[g] = -infinity(), sums.total[g] = 0;
    for (int c = 0; c < kColumns; ++c) sums.mixed[g][c] = 0;
  }
}

inline __device__ void merge(float& peak, float& total, float* mixed, int columns, float other_peak, float other_total,
                             const float* other_mixed) {
  const float highest = fmaxf(peak, other_peak);
  const float kept = exp2f(peak - highest), added = exp2f(other_peak - highest);
  peak = highest;
  total = fmaf(total, kept, other_total * added);
  for (int c = 0; c < columns; ++c) mixed[c] = fmaf(mixed[c], kept, other_mixed[c] * added);
}

// The row of a token: the last one that begins at or before it and is not empty.
inline __device__ int row_of(const AttentionArgs& op, int t) {
  int low = 0, high = int(op.num_rows);
  while (low < high) {
    const int middle = (low + high) / 2;
    if (op.query_starts[middle + 1] <= t) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Shared memory of a block.
template <int kGroup>
struct Shared {
  float* q;         // [kGroup][D], scaled
  float* weights;   // [kGroup][kTile]: scores, then their exponentials
  float* of_tile;   // [2][kGroup]: highest score, sum of weights
  long long* place; // [kTile]: element of the cache at which a key begins
};

template <int kGroup>
inline __device__ void score_keys(const AttentionArgs& op, const Shared<kGroup>& shared, bool seen) {
  float sums[kGroup];
  for (int g = 0; g < kGroup; ++g) sums[g] = 0;
  if (seen) {
    const void* key = element(op.k_cache, shared.place[threadIdx.x], op.cache_type);
    const bool vector = op.head_dim % kVector == 0 && is_aligned(key, op.cache_type);
    for (int d = 0; d < op.head_dim; d += kVector) {
      const int count = op.head_dim - d < kVector ? int(op.head_dim) - d : kVector;
      float k[kVector];
      load8(key, d, count, op.cache_type, vector, k);
#pragma unroll
      for (int g = 0; g < kGroup; ++g)
#pragma unroll
        for (int e = 0; e < kVector; ++e)
          if (e < count) sums[g] = fmaf(shared.q[g * op.head_dim + d + e], k[e], sums[g]);
    }
  }
#pragma unroll
  for (int g = 0; g < kGroup; ++g) shared.weights[g * kTile + threadIdx.x] = seen ? sums[g] : -infinity();
}

// Keys [begin, end) of the tile that starts at `start`, at least one.
template <int kGroup>
inline __device__ void attend_tile(const AttentionArgs& op, const Shared<kGroup>& shared, const int* table, int head,
                                   int start, int begin, int end, Sums<kGroup>& sums) {
  const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp, j = start + thread;
  const bool seen = j >= begin && j < end;
  if (seen) {
    const long long block = table[j / op.block_size];
    shared.place[thread] = ((block * op.block_size + j % op.block_size) * op.num_kv_heads + head) * op.head_dim;
  }
  score_keys<kGroup>(op, shared, seen);
  __syncthreads();
  for (int g = warp; g < kGroup; g += kWarps) {
    float high = -infinity();
    for (int i = lane; i < kTile; i += kWarp) high = fmaxf(high, shared.weights[g * kTile + i]);
    high = warp_max(high);
    if (lane == 0) shared.of_tile[g] = high;
  }
  __syncthreads();
  float kept[kGroup];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    const float peak = fmaxf(sums.peak[g], shared.of_tile[g]);
    kept[g] = exp2f(sums.peak[g] - peak), sums.peak[g] = peak;
    shared.weights[g * kTile + thread] = exp2f(shared.weights[g * kTile + thread] - peak);
  }
  __syncthreads();
  for (int g = warp; g < kGroup; g += kWarps) {
    float sum = 0;
    for (int i = lane; i < kTile; i += kWarp) sum += shared.weights[g * kTile + i];
    sum = warp_sum(sum);
    if (lane == 0) shared.of_tile[kGroup + g] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    sums.total[g] = fmaf(sums.total[g], kept[g], shared.of_tile[kGroup + g]);
    for (int c = 0; c < kColumns; ++c) sums.mixed[g][c] *= kept[g];
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int d = thread + c * kTile;
    if (d >= op.head_dim) continue;
    for (int i = begin - start; i < end - start; ++i) {
      const float value = load(op.v_cache, shared.place[i] + d, op.cache_type);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) sums.mixed[g][c] = fmaf(shared.weights[g * kTile + i], value, sums.mixed[g][c]);
    }
  }
  __syncthreads();
}

// Grid: tokens, kv heads, parts (1 where kSplit is false). kGroup: the query heads of a kv head, or more.
template <int kGroup, bool kSplit>
__global__ void attend(AttentionArgs op) {
  PSS_DYN_SMEM(float, memory);
  const int t = blockIdx.x, head = blockIdx.y, thread = threadIdx.x, group = int(op.num_heads / op.num_kv_heads);
  const int b = row_of(op, t);
  if (b >= op.num_rows) return;
  const int position = op.context_lens[b] - op.query_starts[b + 1] + t;
  const int first = op.window > 0 && position + 1 > op.window ? position + 1 - int(op.window) : 0;
  int part = first / int(kPart), end_part = position / int(kPart) + 1;
  if (kSplit) {
    if (int(blockIdx.z) < part || int(blockIdx.z) >= end_part) return;
    part = blockIdx.z, end_part = part + 1;
  }
  Shared<kGroup> shared;
  shared.place = reinterpret_cast<long long*>(memory);
  shared.q = memory + 2 * kTile;
  shared.weights = shared.q + kGroup * op.head_dim;
  shared.of_tile = shared.weights + kGroup * kTile;
  for (int i = thread; i < kGroup * op.head_dim; i += kTile) {
    const long long at = t * op.q_stride + head * group * op.head_dim + i;
    shared.q[i] = i < group * op.head_dim ? load(op.q, at, op.row_type) * (op.scale * kLog2E) : 0.0f;
  }
  __syncthreads();
  Sums<kGroup> all;
  clear(all);
  for (; part < end_part; ++part) {
    Sums<kGroup> sums;
    clear(sums);
    const int low = part * int(kPart), high = low + int(kPart) < position + 1 ? low + int(kPart) : position + 1;
    for (int start = low > first ? low : first / kTile * kTile; start < high; start += kTile)
      attend_tile(op, shared, op.block_tables + b * op.max_blocks, head, start, start > first ? start : first,
                  start + kTile < high ? start + kTile : high, sums);
    for (int g = 0; g < kGroup; ++g)
      merge(all.peak[g], all.total[g], all.mixed[g], kColumns, sums.peak[g], sums.total[g], sums.mixed[g]);
  }
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (g >= group) continue;
    const long long n = head * group + g;
    const long long line = kSplit ? (blockIdx.z * op.num_tokens + t) * op.num_heads + n : t * op.num_heads + n;
    if (kSplit && thread == 0) op.peaks[line] = all.peak[g], op.totals[line] = all.total[g];
    for (int c = 0; c < kColumns; ++c) {
      const int d = thread + c * kTile;
      if (d >= op.head_dim) continue;
      if (kSplit) op.mixed[line * op.head_dim + d] = all.mixed[g][c];
      else store(op.out, line * op.head_dim + d, op.row_type, all.mixed[g][c] / all.total[g]);
    }
  }
}

// Grid: tokens, query heads.
__global__ void merge_parts(AttentionArgs op) {
  const int t = blockIdx.x, b = row_of(op, t);
  const long long n = blockIdx.y;
  if (b >= op.num_rows) return;
  const int position = op.context_lens[b] - op.query_starts[b + 1] + t;
  const int first = op.window > 0 && position + 1 > op.window ? position + 1 - int(op.window) : 0;
  for (int d = threadIdx.x; d < op.head_dim; d += blockDim.x) {
    float peak = -infinity(), total = 0, mixed = 0;
    for (int part = first / int(kPart); part <= position / int(kPart); ++part) {
      const long long line = (part * op.num_tokens + t) * op.num_heads + n;
      merge(peak, total, &mixed, 1, op.peaks[line], op.totals[line], &op.mixed[line * op.head_dim + d]);
    }
    store(op.out, (t * op.num_heads + n) * op.head_dim + d, op.row_type, mixed / total);
  }
}

}  // namespace pss::cuda
