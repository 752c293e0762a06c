#include "cpu/decoder_rows.h"

#include <algorithm>
#include <type_traits>

#include "cpu/parallel.h"

#define PSS_EACH_ISA "cpu/decoder_rows.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {

// What an exponential costs, in multiply-adds.
constexpr int64_t kExpWork = 16;

}  // namespace

void rms_norm(const RmsNorm& op) { run_rows(op, PSS_SELECT_ISA(rms_norm_row), 2 * op.size); }

void silu_mul(const SiluMul& op) { run_rows(op, PSS_SELECT_ISA(silu_mul_row), kExpWork * op.size); }

void apply_rope(const Rope& op) { run_rows(op, PSS_SELECT_ISA(apply_rope_row), op.num_heads * op.head_dim); }

void rms_norm(const RmsNorm& op, int64_t row) { PSS_SELECT_ISA(rms_norm_row)(op, row); }

void silu_mul(const SiluMul& op, int64_t row) { PSS_SELECT_ISA(silu_mul_row)(op, row); }

void apply_rope(const Rope& op, int64_t row) { PSS_SELECT_ISA(apply_rope_row)(op, row); }

}  // namespace pss
