#pragma once
#include <cstdint>

#include "cpu/linear.h"

namespace pss {

// A row of activations in int8, cut in groups of 32 k's: x[k] ~ t * d[k] with t = max |x| / 127 of the group and
// d = round(x * 127 / max |x|).
constexpr int64_t kRowGroup = 32, kRowSum = 16;

// 64 k's of one row, in cache lines of its own: the rows of a tile are packed by different threads.
struct alignas(64) Int8Block {
  struct Group {
    float scale, scaled_sum;                         // t, and that times the sum of the d
    int32_t minus, minus_half[kRowGroup / kRowSum];  // minus the sum of the d, and of each sixteen
  };
  int8_t codes[2 * kRowGroup];
  Group groups[2];
};
constexpr int64_t kInt8Block = sizeof(Int8Block::codes);

// Floats that a packed row takes the place of.
int64_t int8_row_words(int64_t in_features);

// The two halves of linear() where op.int8_rows: row i of the block of `rows` rows from `row` on into the packed block,
// then the packed block x times panels [first, last).
void pack_int8_row(const Linear& op, int64_t row, int64_t rows, int64_t i, float* block);
void multiply_int8(const Linear& op, const float* x, int64_t row, int64_t rows, int64_t first, int64_t last);

}  // namespace pss
