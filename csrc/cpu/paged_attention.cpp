#include "cpu/paged_attention.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/arena.h"
#include "cpu/parallel.h"
#include "cpu/weight_format.h"

#define PSS_EACH_ISA "cpu/paged_attention.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {

// Query lines of a piece: as many as see a tile of keys while their sums stay in the second-level cache.
constexpr int64_t kMaxLines = 64;

// Features of the heads of a piece: as many as leave room in the second-level cache for two tiles of keys and values.
constexpr int64_t kMaxFeatures = 512;

[[noreturn]] void refuse(const std::string& name, int64_t index, int64_t value, const std::string& expected) {
  throw std::invalid_argument("paged_attention: " + name + "[" + std::to_string(index) + "] = " + std::to_string(value) +
                              ", must be " + expected);
}

// Pieces of all rows under `num_heads` key heads each. The longest contexts, at the end of a prefill, come first.
std::vector<AttentionPiece> cut(const PagedAttention& op, int64_t max_tokens, int64_t num_heads) {
  std::vector<AttentionPiece> pieces;
  pieces.reserve((op.num_rows + op.num_tokens / max_tokens) * ((op.num_kv_heads + num_heads - 1) / num_heads));
  for (int64_t b = op.num_rows - 1; b >= 0; --b) {
    const int64_t begin = op.query_starts[b], end = op.query_starts[b + 1];
    for (int64_t i = (end - begin + max_tokens - 1) / max_tokens - 1; i >= 0; --i) {
      const int64_t token = begin + i * max_tokens, position = op.context_lens[b] - (end - token);
      for (int64_t head = 0; head < op.num_kv_heads; head += num_heads)
        pieces.push_back({b, token, std::min(max_tokens, end - token), position, head,
                          std::min(num_heads, op.num_kv_heads - head)});
    }
  }
  return pieces;
}

}  // namespace

// Checks that every index stays in its tensor.
void check(const PagedAttention& op) {
  const int64_t max_context = op.max_blocks * op.block_size;
  for (int64_t b = 0; b < op.num_rows; ++b) {
    const int64_t start = op.query_starts[b], end = op.query_starts[b + 1], context = op.context_lens[b];
    if (b == 0 && start != 0) refuse("query_starts", 0, start, "0");
    if (end < start) refuse("query_starts", b + 1, end, "at least " + std::to_string(start) + ", the one before");
    if (context < end - start || context > max_context)
      refuse("context_lens", b, context, std::to_string(end - start) + " (the new tokens) to " +
                                             std::to_string(max_context) + " (all blocks of the table)");
    const int64_t first = std::max<int64_t>(0, context - (end - start) + 1 - op.window);
    for (int64_t i = first / op.block_size; i * op.block_size < context && start < end; ++i)
      if (const int64_t block = op.block_tables[b * op.max_blocks + i]; block < 0 || block >= op.num_blocks)
        refuse("block_tables[" + std::to_string(b) + "]", i, block, "0 to " + std::to_string(op.num_blocks - 1));
  }
  if (op.query_starts[op.num_rows] != op.num_tokens)
    refuse("query_starts", op.num_rows, op.query_starts[op.num_rows], std::to_string(op.num_tokens) + ", the tokens");
}

int AttentionPlan::worth_threads(const PagedAttention& op) {
  int64_t work = 0;
  for (int64_t b = 0; b < op.num_rows; ++b)
    work += (op.query_starts[b + 1] - op.query_starts[b]) * std::min<int64_t>(op.context_lens[b], op.window) *
            op.num_heads * op.head_dim * 2;
  return num_threads(op.num_tokens * op.num_kv_heads, work);
}

AttentionPlan::AttentionPlan(const PagedAttention& op, int threads) {
  const int64_t group = op.num_heads / op.num_kv_heads;
  int64_t longest = 1;
  for (int64_t b = 0; b < op.num_rows; ++b)
    longest = std::max<int64_t>(longest, op.query_starts[b + 1] - op.query_starts[b]);
  const int64_t max_tokens = std::min(longest, std::max<int64_t>(1, kMaxLines / group));
  // Heads of a token lie side by side: together they stream from memory, as long as each thread still has its share.
  int64_t num_heads = std::min({op.num_kv_heads, kMaxLines / (group * max_tokens), kMaxFeatures / op.head_dim});
  num_heads = std::max<int64_t>(1, num_heads);
  const int64_t wanted = threads == 1 ? 1 : 2 * threads;
  while (num_heads > 1 && (op.num_tokens + max_tokens - 1) / max_tokens * (op.num_kv_heads / num_heads) < wanted)
    num_heads /= 2;
  pieces_ = cut(op, max_tokens, num_heads);
  scratch_size_ = PSS_SELECT_ISA(attention_scratch)(max_tokens * group * num_heads, op.head_dim);
}

void AttentionPlan::run(const PagedAttention& op, int64_t piece) const {
  PSS_SELECT_ISA(attend)(op, pieces_[piece], scratch<PagedAttention>(scratch_size_));
}

void paged_attention(const PagedAttention& op) {
  check(op);
  const int threads = AttentionPlan::worth_threads(op);
  const AttentionPlan plan(op, threads);
  for_each_piece(plan.num_pieces(), threads, [&](int64_t i) { plan.run(op, i); });
}

}  // namespace pss
