#pragma once
#include <cstdint>

#include "cpu/dtype.h"

namespace pss {

// y[t, n] = sum_k x[t, k] W[n, k] + bias[n], W packed in panels of 16 columns: packed[n / 16][k][n % 16], the last one
// padded. Strides count floats; rows of x and y are contiguous.
struct Linear {
  float* y;
  const float* x;
  const void* packed;   // [ceil(N / 16), K, 16]
  const float* bias;    // [N] or null
  int64_t num_rows, in_features, out_features;
  int64_t y_stride, x_stride;
  DType weight_type;
};

// Each output is one chain of multiply-adds over k from 0 up, in float: its bits depend on its own row and column
// alone, not on the other rows, their number, or the number of threads.
void linear(const Linear& op);

}  // namespace pss
