#include "cpu/backward_rows.h"

#include <algorithm>
#include <type_traits>

#include "cpu/parallel.h"

#define PSS_EACH_ISA "cpu/backward_rows.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {

// Work of an element, in multiply-adds.
constexpr int64_t kNormWork = 4, kSiluWork = 24, kLossWork = 24;

}  // namespace

void rms_norm_backward(const RmsNormBackward& op) {
  run_rows(op, PSS_SELECT_ISA(rms_norm_backward_row), kNormWork * op.size);
}

void silu_mul_backward(const SiluMulBackward& op) {
  run_rows(op, PSS_SELECT_ISA(silu_mul_backward_row), kSiluWork * op.size);
}

void cross_entropy(const CrossEntropy& op) { run_rows(op, PSS_SELECT_ISA(cross_entropy_row), kLossWork * op.size); }

}  // namespace pss
