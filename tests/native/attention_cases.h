// Cases of paged attention, and the formula written as plain loops.
#pragma once
#include <algorithm>

#include "tests/native/harness.h"

namespace pss::test {

struct AttentionCase {
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

inline Memory memory_of(const AttentionCase& c, Random& random) {
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

inline std::vector<double> expected_of(const AttentionCase& c, const Memory& m, const Tensor& q, int64_t at, int64_t b,
                                       int64_t position, int64_t head) {
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

}  // namespace pss::test
