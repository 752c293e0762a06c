#pragma once
#include <cstdint>

#include "cpu/dtype.h"

namespace pss {

// The small ops of a decoder layer, a row of x at a time; formulas in ops/transformer.py. Computed in float with one
// rounding at the end; a row's bits depend on that row alone. Strides count elements between rows, which are contiguous.

// y[t] = weight * x[t] / sqrt(mean(x[t]^2) + eps)
struct RmsNorm {
  void* y;              // [T, H] contiguous
  const void* x;        // [T, H]
  const void* weight;   // [H]
  int64_t num_rows, size, x_stride;
  float eps;
  DType type;
};
void rms_norm(const RmsNorm& op);
void rms_norm(const RmsNorm& op, int64_t row);

// y[t, i] = silu(x[t, i]) * x[t, I + i]
struct SiluMul {
  void* y;         // [T, I] contiguous
  const void* x;   // [T, 2 I]
  int64_t num_rows, size, x_stride;   // size: I
  DType type;
};
void silu_mul(const SiluMul& op);
void silu_mul(const SiluMul& op, int64_t row);

// Pairs (i, i + half) of each head turned by the angle of the row; what lies past 2 * half is copied.
struct Rope {
  void* y;            // [T, heads, D]; may be x
  const void* x;      // [T, heads, D]
  const float* cos;   // [T, half] contiguous
  const float* sin;
  int64_t num_rows, num_heads, head_dim, half, y_stride, x_stride;
  DType type;
};
void apply_rope(const Rope& op);
void apply_rope(const Rope& op, int64_t row);

}  // namespace pss
