#include "cuda/launch.h"
#include "tests/native/attention_cases.h"

using namespace pss;
using namespace pss::test;

namespace {

// The same bits whether the parts of a context are blocks of their own or not.
void check_case(const AttentionCase& c) {
  Random random(c.head_dim + 17 * c.heads);
  const Memory memory = memory_of(c, random);
  std::vector<int> starts{0};
  for (const int32_t count : c.query_lens) starts.push_back(starts.back() + count);
  const int64_t tokens = starts.back(), width = c.heads * c.head_dim, stride = width + 8;
  const Tensor q = random_rows(random, c.row, tokens, width, stride);
  const int64_t parts = (memory.max_blocks * c.block_size + cuda::kPart - 1) / cuda::kPart;
  Tensor together(c.row, tokens * width), apart(c.row, tokens * width);
  std::vector<float> mixed(parts * tokens * width, NAN), peaks(parts * tokens * c.heads, NAN), totals = peaks;
  cuda::AttentionArgs op{};
  op.q = q.data(), op.k_cache = memory.k.data(), op.v_cache = memory.v.data(), op.block_tables = memory.tables.data();
  op.query_starts = starts.data(), op.context_lens = c.context_lens.data();
  op.mixed = mixed.data(), op.peaks = peaks.data(), op.totals = totals.data();
  op.num_rows = int64_t(c.context_lens.size()), op.num_tokens = tokens, op.max_blocks = memory.max_blocks;
  op.block_size = c.block_size, op.num_heads = c.heads, op.num_kv_heads = c.kv_heads, op.head_dim = c.head_dim;
  op.q_stride = stride, op.window = c.window < (1 << 20) ? c.window : 0, op.scale = c.sharpness;
  op.row_type = int(c.row), op.cache_type = int(c.cache);
  op.out = together.data(), op.num_parts = 1;
  cuda::paged_attention(op, nullptr);
  op.out = apart.data(), op.num_parts = std::max<int64_t>(2, parts);
  mixed.resize(op.num_parts * tokens * width), peaks.resize(op.num_parts * tokens * c.heads), totals.resize(peaks.size());
  op.mixed = mixed.data(), op.peaks = peaks.data(), op.totals = totals.data();
  cuda::paged_attention(op, nullptr);
  for (size_t b = 0; b < c.query_lens.size(); ++b)
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t)
      for (int64_t head = 0; head < c.heads; ++head) {
        const int64_t position = c.context_lens[b] - starts[b + 1] + t;
        const auto expected = expected_of(c, memory, q, t * stride + head * c.head_dim, int64_t(b), position, head);
        for (int64_t d = 0; d < c.head_dim; ++d) {
          const int64_t at = t * width + head * c.head_dim + d;
          expect_close(label("paged_attention", {c.head_dim, t, head, d}), together[at], expected[d],
                       5 * tolerance(c.row));
          expect(label("parts apart", {c.head_dim, t, head, d}), apart[at] == together[at]);
        }
      }
}

}  // namespace

PSS_TEST(paged_attention_over_heads) {
  for (const int64_t dim : {7, 64, 80, 96, 128, 256}) check_case({{1, 2}, {140, 2}, 4, 2, dim, 16});
  for (const int64_t heads : {1, 3, 7, 16}) check_case({{1, 2}, {37, 9}, heads, 1, 24, 16});
}

PSS_TEST(paged_attention_over_windows_and_blocks) {
  for (const int64_t window : {1, 128, 300})
    for (const int64_t block : {5, 16}) check_case({{1, 3, 0, 1}, {530, 257, 5, 1}, 2, 1, 16, block, window});
}

PSS_TEST(paged_attention_over_types) {
  for (const DType row : kTypes)
    for (const DType cache : kTypes) check_case({{2, 1}, {40, 1}, 4, 2, 24, 16, 1 << 30, row, cache});
}
