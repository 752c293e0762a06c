#include "cpu/int8_rows.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#define PSS_EACH_ISA "cpu/int8_rows.inc"
#include "cpu/each_isa.h"

namespace pss {

int64_t int8_row_words(int64_t in_features) {
  return (in_features + kInt8Block - 1) / kInt8Block * int64_t(sizeof(Int8Block) / sizeof(float));
}

void pack_int8_row(const Linear& op, int64_t row, int64_t rows, int64_t i, float* block) {
  PSS_SELECT_ISA(pack_int8_row)(op, row, rows, i, block);
}

void multiply_int8(const Linear& op, const float* x, int64_t row, int64_t rows, int64_t first, int64_t last) {
  PSS_SELECT_ISA(multiply_int8)(op, x, row, rows, first, last);
}

}  // namespace pss
