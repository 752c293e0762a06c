#include "cpu/paged_attention.h"

#include <algorithm>

#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

namespace {

struct Case {
  std::vector<int32_t> query_lens, context_lens;
  int64_t heads, kv_heads, head_dim, block_size, window = 1 << 30;
  DType row = DType::f32, cache = DType::f32;
  float sharpness = 4.0f;
};

// Blocks in reverse order; what lies past a context is NaN in the caches and -1 in the tables.
struct Memory {
  Tensor k, v;
  std::vector<int32_t> tables;
  int64_t max_blocks, num_blocks;
};

Memory memory_of(const Case& c, Random& random) {
  int64_t most = 1, total = 0;
  for (const int64_t context : c.context_lens) {
    const int64_t blocks = (context + c.block_size - 1) / c.block_size;
    most = std::max(most, blocks + 1), total += blocks;
  }
  const int64_t row = c.kv_heads * c.head_dim, rows = int64_t(c.context_lens.size());
  Memory memory{Tensor(c.cache, total * c.block_size * row), Tensor(c.cache, total * c.block_size * row),
                std::vector<int32_t>(rows * most, -1), most, total};
  int64_t next = total;
  for (int64_t b = 0; b < rows; ++b)
    for (int64_t j = 0; j < c.context_lens[b]; ++j) {
      if (j % c.block_size == 0) memory.tables[b * most + j / c.block_size] = int32_t(--next);
      for (int64_t i = 0; i < row; ++i) {
        memory.k.set((next * c.block_size + j % c.block_size) * row + i, random());
        memory.v.set((next * c.block_size + j % c.block_size) * row + i, random());
      }
    }
  return memory;
}

std::vector<double> expected_of(const Case& c, const Memory& m, const Tensor& q, int64_t at, int64_t b, int64_t position,
                                int64_t head) {
  const int64_t group = c.heads / c.kv_heads, first = std::max<int64_t>(0, position + 1 - c.window);
  std::vector<double> scores, out(c.head_dim);
  const auto key = [&](int64_t j) {
    const int64_t block = m.tables[b * m.max_blocks + j / c.block_size];
    return ((block * c.block_size + j % c.block_size) * c.kv_heads + head / group) * c.head_dim;
  };
  double highest = -INFINITY, total = 0;
  for (int64_t j = first; j <= position; ++j) {
    double score = 0;
    for (int64_t d = 0; d < c.head_dim; ++d) score += double(q[at + d]) * m.k[key(j) + d];
    scores.push_back(score * c.sharpness), highest = std::max(highest, scores.back());
  }
  for (double& score : scores) total += score = std::exp(score - highest);
  for (int64_t j = first; j <= position; ++j)
    for (int64_t d = 0; d < c.head_dim; ++d) out[d] += scores[j - first] / total * m.v[key(j) + d];
  return out;
}

PagedAttention op_of(const Case& c, const Memory& m, const Tensor& q, Tensor& out, const std::vector<int32_t>& starts,
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

void check_case(const Case& c) {
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
  const Case c{{1}, {20}, 2, 1, 8, 16};
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
