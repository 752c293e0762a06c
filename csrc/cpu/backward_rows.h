#pragma once
#include <cstdint>

namespace pss {

// The gradients of the ops of decoder_rows.h and of the loss, a row at a time; formulas in ops/backward.py. A row's bits depend on that
// row alone. Strides count floats between rows, which are contiguous.

// With r = 1 / sqrt(mean(x[t]^2) + eps), g = weight * dy[t]: dx[t] = residual[t] + r (g - x r^2 mean(g x))
struct RmsNormBackward {
  float* dx;               // [T, H] contiguous
  const float* dy;         // [T, H]
  const float* x;
  const float* weight;     // [H]
  const float* residual;   // [T, H] contiguous, or null
  int64_t num_rows, size, dy_stride, x_stride;
  float eps;
};
void rms_norm_backward(const RmsNormBackward& op);

// d_gate = dy up silu'(gate), d_up = dy silu(gate)
struct SiluMulBackward {
  float* dx;         // [T, 2 I] contiguous
  const float* dy;   // [T, I]
  const float* x;    // [T, 2 I]: gate, then up
  int64_t num_rows, size, dy_stride, x_stride;   // size: I
};
void silu_mul_backward(const SiluMulBackward& op);

// losses[t] = log(sum_v exp(x[t, v])) - x[t, labels[t]]; with_grad: x[t] becomes softmax(x[t]) - onehot(labels[t]).
struct CrossEntropy {
  float* losses;           // [T]
  float* x;                // [T, V]
  const int64_t* labels;   // [T], each below V
  int64_t num_rows, size, x_stride;   // size: V
  bool with_grad;
};
void cross_entropy(const CrossEntropy& op);

}  // namespace pss
