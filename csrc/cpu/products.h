#pragma once
#include <cstdint>

namespace pss {

// out[m, n] = alpha * sum_k left[m, k] right[k, n], added to what out holds where `add` says so. Strides count floats;
// the columns of out lie side by side, the operands are strided as they come.
struct Product {
  float* out;
  const float* left;
  const float* right;
  int64_t rows, depth, columns;
  int64_t out_stride;               // between rows
  int64_t left_row, left_depth;     // between rows, between k
  int64_t right_depth, right_column;
  float alpha;
  bool add;
};

// Many small products in one go; none may read or write what another writes. Each sum is one chain of multiply-adds
// over k from 0 up: its bits depend on its own row and column alone.
void products(const Product* all, int64_t count);

}  // namespace pss
