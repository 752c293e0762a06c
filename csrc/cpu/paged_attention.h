#pragma once
#include <cstdint>
#include <vector>

#include "cpu/dtype.h"

namespace pss {

// Causal attention of each row's new tokens over its context in the paged cache; the formula is in ops/attention.py.
// Strides count elements between tokens; the heads of a token and the caches are contiguous.
struct PagedAttention {
  void* out;                     // [T, N, D]
  const void* q;                 // [T, N, D]
  const void* k_cache;           // [num_blocks, P, K, D]
  const void* v_cache;
  const int32_t* block_tables;   // [B, max_blocks]
  const int32_t* query_starts;   // [B + 1]
  const int32_t* context_lens;   // [B]
  int64_t num_rows, num_tokens, max_blocks, num_blocks, block_size, num_heads, num_kv_heads, head_dim;
  int64_t out_stride, q_stride;
  int64_t window;   // positions that a token sees, its own included
  float scale;
  DType row_type;   // of q and out
  DType cache_type;
};

// A token's bits depend on the token, its position and its context alone: not on the other rows, on how many tokens
// came with it, or on the number of threads. Throws std::invalid_argument for starts, lengths or blocks out of range;
// out is untouched then.
void paged_attention(const PagedAttention& op);

// Throws as paged_attention does.
void check(const PagedAttention& op);

// Some tokens of one row under some key heads: one piece of work.
struct AttentionPiece {
  int64_t row, first_token, num_tokens, first_position, first_head, num_heads;
};

// The same in pieces, in any order, for who has threads at hand. What has been checked is not checked again; the
// pieces are good for every layer of one window.
class AttentionPlan {
 public:
  AttentionPlan(const PagedAttention& op, int threads);

  int64_t num_pieces() const { return int64_t(pieces_.size()); }
  // `op` may have other caches, q and out than the one that was planned.
  void run(const PagedAttention& op, int64_t piece) const;

  // Threads worth waking for it.
  static int worth_threads(const PagedAttention& op);

 private:
  std::vector<AttentionPiece> pieces_;
  int64_t scratch_size_;
};

}  // namespace pss
