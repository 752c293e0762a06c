// What the CUDA kernels are told; plain C++ without includes, so that every compiler of device code can read it.
// Addresses are of device memory, or of host memory that the device sees. Strides count elements.
#pragma once

namespace pss::cuda {

enum Type : int { kF32 = 0, kBF16 = 1, kF16 = 2, kF8 = 3, kI8 = 4 };  // kF8: float8_e4m3fn, caches only; kI8: vectors

constexpr long long kMaxGroup = 16, kMaxHeadDim = 256, kPart = 256;  // of attention; kPart: keys of one part
constexpr long long kSearchBlock = 256;  // passages of which the best candidates are kept

// y[t] += scaling[s] * (x[t] A[s, :r]^T) B[s, :, :r]^T with s = slot_ids[t], r = ranks[s]; a row whose slot is not in 0 to
// num_slots - 1 is left alone. A row's bits depend on that row alone.
struct LoraArgs {
  void* y;               // [T, H_out]
  const void* x;         // [T, H_in]
  const void* lora_a;    // [S, R, H_in]
  const void* lora_b;    // [S, H_out, R]
  const float* scaling;  // [S]
  const int* ranks;      // [S]
  const int* slot_ids;   // [T]
  float* low;            // [T, R]: workspace
  long long num_rows, num_slots, max_rank, in_features, out_features;
  long long y_stride, x_stride, a_stride, b_stride;
  int row_type, lora_type;
};

// Causal attention over the paged cache, as in ops/attention.py; a token's bits depend on its own context alone.
struct AttentionArgs {
  void* out;                  // [T, N, D] contiguous
  const void* q;              // [T, N, D]
  const void* k_cache;        // [num_blocks, P, K, D]
  const void* v_cache;
  const int* block_tables;    // [B, max_blocks]
  const int* query_starts;    // [B + 1]
  const int* context_lens;    // [B]
  float* mixed;               // [parts, T, N, D]: workspace where num_parts > 1
  float* peaks;               // [parts, T, N]
  float* totals;              // [parts, T, N]
  long long num_rows, num_tokens, max_blocks, block_size, num_heads, num_kv_heads, head_dim, num_parts;
  long long q_stride, window;  // window: 0 = none
  float scale;
  int row_type, cache_type;
};

// cache[kv_rows[t]] = k[t], v[t]; a token whose row is not in the cache is left out.
struct StoreArgs {
  void* k_cache;  // [num_cache_rows, row_size]
  void* v_cache;
  const void* k;  // [T, row_size]
  const void* v;
  const long long* kv_rows;  // [T]
  long long num_tokens, num_cache_rows, row_size, k_stride, v_stride;
  int row_type, cache_type;
};

// Many copies in one launch: to[i][0 .. bytes[i]) = from[i][0 .. bytes[i]); they do not overlap.
struct CopyArgs {
  const long long* from;   // [count]: addresses, in device memory like the two below
  const long long* to;
  const long long* bytes;
  long long count;
};

// Where the candidates of a search go: the best `depth` of every kSearchBlock passages, for each query.
struct SearchArgs {
  const int* places;           // [N]: the passage's place among all ranks
  const unsigned char* masks;  // [M, N]: 0 = not to be found
  const int* mask_rows;        // [B]: a query's mask, -1 = all passages
  long long* keys;             // [B, ceil(N / kSearchBlock), depth]
  long long num_passages, depth;
};

struct DenseArgs {
  SearchArgs to;
  const void* queries;  // [B, H] float32, int8 where the vectors are
  const void* vectors;  // [N, H]
  const float* scales;  // [N], of int8 vectors
  long long num_queries, size;
  int query_type, vector_type;
};

struct SparseArgs {
  SearchArgs to;
  const int* terms;
  const long long* starts;  // [B + 1]
  const long long* indptr;  // [V + 1]
  const int* passages;      // of all postings, ascending within a term
  const float* weights;
  long long num_queries;
};

}  // namespace pss::cuda
