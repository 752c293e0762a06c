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

template <class Op>
void run(const Op& op, void (*row)(const Op&, int64_t), int64_t element_work) {
  const int threads = num_threads(op.num_rows, op.num_rows * op.size * element_work);
  for_each_row(op.num_rows, threads, [&](int, int64_t t) { row(op, t); });
}

}  // namespace

void rms_norm_backward(const RmsNormBackward& op) { run(op, PSS_SELECT_ISA(rms_norm_backward_row), kNormWork); }

void silu_mul_backward(const SiluMulBackward& op) { run(op, PSS_SELECT_ISA(silu_mul_backward_row), kSiluWork); }

void cross_entropy(const CrossEntropy& op) { run(op, PSS_SELECT_ISA(cross_entropy_row), kLossWork); }

}  // namespace pss
