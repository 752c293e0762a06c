#include "cpu/argmax.h"

#include <algorithm>
#include <limits>

#include "cpu/parallel.h"

namespace pss {
namespace {

constexpr int64_t kArgmaxBlock = 2048;  // searched again, one by one, where it holds the largest

}  // namespace
}  // namespace pss

#define PSS_EACH_ISA "cpu/argmax.inc"
#include "cpu/each_isa.h"

namespace pss {

void argmax(const Argmax& op) {
  const auto row = PSS_SELECT_ISA(argmax_row);
  for_each_row(op.num_rows, num_threads(op.num_rows, op.num_rows * op.size),
               [&](int, int64_t t) { op.tokens[t] = row(op, t); });
}

}  // namespace pss
