#include "cpu/paged_attention.h"

#include "tests/native/attention_cases.h"

using namespace pss;
using namespace pss::test;

namespace {

PagedAttention op_of(const AttentionCase& c, const Memory& m, const Tensor& q, Tensor& out, const std::vector<int32_t>& starts,
                     int64_t stride) {
  PagedAttention op{};
  op.out = out.data(), op.q = q.data(), op.k_cache = m.k.data(), op.v_cache = m.v.data();
  op.block_tables = m.tables.data(), op.query_starts = starts.data(), op.context_lens = c.context_lens.data();
  op.num_rows = int64_t(c.context_lens.size()), op.num_tokens = starts.back(), op.max_blocks = m.max_blocks;
  op.num_blocks = m.num_blocks, op.block_size = c.block_size, op.num_heads = c.heads, op.num_kv_heads = c.kv_heads;
  op.head_dim = c.head_dim, op.out_stride = c.heads * c.head_dim, op.q_stride = stride, op.window = c.window;
  op.scale = c.sharpness, op.row_type = c.row, op.cache_type = c.cache;
  return op;
}

void check_case(const AttentionCase& c) {
  Random random(c.head_dim + 17 * c.heads);
  const Memory memory = memory_of(c, random);
  std::vector<int32_t> starts{0};
  for (const int32_t count : c.query_lens) starts.push_back(starts.back() + count);
  const int64_t stride = c.heads * c.head_dim + 3, width = c.heads * c.head_dim;
  const Tensor q = random_rows(random, c.row, starts.back(), width, stride);
  Tensor out(c.row, starts.back() * width);
  paged_attention(op_of(c, memory, q, out, starts, stride));
  for (size_t b = 0; b < c.query_lens.size(); ++b)
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t)
      for (int64_t head = 0; head < c.heads; ++head) {
        const int64_t position = c.context_lens[b] - starts[b + 1] + t;
        const auto expected = expected_of(c, memory, q, t * stride + head * c.head_dim, int64_t(b), position, head);
        for (int64_t d = 0; d < c.head_dim; ++d)
          expect_close(label("paged_attention", {c.head_dim, t, head, d}), out[t * width + head * c.head_dim + d],
                       expected[d], 5 * tolerance(c.row));
      }
}

}  // namespace

PSS_TEST(paged_attention_over_heads) {
  for (const int64_t dim : {1, 7, 16, 33, 64, 80, 96, 128, 256}) check_case({{1, 3}, {70, 3}, 6, 2, dim, 16});
  for (const int64_t heads : {1, 3, 8, 16}) check_case({{1, 5}, {37, 9}, heads, 1, 24, 16});
}

PSS_TEST(paged_attention_over_windows_and_blocks) {
  for (const int64_t window : {1, 9, 64, 65})
    for (const int64_t block : {1, 5, 16}) check_case({{1, 12, 0, 1}, {130, 70, 5, 1}, 4, 2, 24, block, window});
}

PSS_TEST(paged_attention_over_types) {
  for (const DType row : kTypes)
    for (const DType cache : kTypes) check_case({{2, 1}, {40, 1}, 4, 2, 20, 16, 1 << 30, row, cache});
}

PSS_TEST(paged_attention_with_scores_of_any_size) {
  check_case({{1, 3}, {130, 3}, 2, 1, 16, 16, 1 << 30, DType::f32, DType::f32, 300.0f});
}

PSS_TEST(paged_attention_on_several_threads) { check_case({{90, 1, 1}, {90, 200, 190}, 6, 2, 32, 16}); }

PSS_TEST(paged_attention_refuses_what_is_out_of_range) {
  const AttentionCase c{{1}, {20}, 2, 1, 8, 16};
  Random random(1);
  Memory memory = memory_of(c, random);
  const std::vector<int32_t> starts{0, 1};
  const Tensor q = random_rows(random, c.row, 1, 16, 16);
  Tensor out(c.row, 16);
  const PagedAttention op = op_of(c, memory, q, out, starts, 16);
  memory.tables[1] = 2;
  expect_refused("block 2 of 2", "block_tables[0][1] = 2", [&] { paged_attention(op); });
  PagedAttention longer = op;
  longer.max_blocks = 1;
  expect_refused("a context of 20 in one block", "context_lens[0] = 20", [&] { paged_attention(longer); });
}
