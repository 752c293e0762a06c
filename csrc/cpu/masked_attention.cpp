#include "cpu/masked_attention.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "cpu/arena.h"
#include "cpu/parallel.h"
#include "cpu/products.h"

#define PSS_EACH_ISA "cpu/masked_attention.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {

// A matrix of one head: element [i, j] at data[i * row + j * column].
struct Matrix {
  float* data;
  int64_t rows, columns, row, column;

  Matrix turned() const { return {data, columns, rows, column, row}; }
};

Product product(const Matrix& out, const Matrix& left, const Matrix& right, float alpha, bool add) {
  return {out.data, left.data,  right.data,  out.rows,     left.columns, out.columns, out.row,
          left.row, left.column, right.row, right.column, alpha,        add};
}

// The heads of a tensor [t, heads, D], and of one [N, t, t].
struct Heads {
  const MaskedAttention& op;

  Matrix of(const float* x, int64_t stride, int64_t head) const {
    return {const_cast<float*>(x) + head * op.head_dim, op.num_rows, op.head_dim, stride, 1};
  }
  Matrix square(const float* x, int64_t head) const {
    return {const_cast<float*>(x) + head * op.num_rows * op.num_rows, op.num_rows, op.num_rows, op.num_rows, 1};
  }
};

// What an element of a row costs, in multiply-adds.
constexpr int64_t kRowWork = 24;

template <class F>
void each_score_row(const MaskedAttention& op, const F& f) {
  const int64_t rows = op.num_heads * op.num_rows;
  for_each_row(rows, num_threads(rows, rows * op.num_rows * kRowWork), [&](int, int64_t row) { f(row); });
}

void run(const std::vector<Product>& all) { products(all.data(), int64_t(all.size())); }

}  // namespace

void masked_attention(const MaskedAttention& op, const float* mask, int64_t mask_stride, float* shares, float* out) {
  const Heads heads{op};
  const int64_t group = op.num_heads / op.num_kv_heads, out_stride = op.num_heads * op.head_dim;
  std::vector<Product> scores, values;
  for (int64_t n = 0; n < op.num_heads; ++n) {
    const Matrix q = heads.of(op.q, op.q_stride, n), k = heads.of(op.k, op.k_stride, n / group);
    const Matrix v = heads.of(op.v, op.v_stride, n / group);
    scores.push_back(product(heads.square(shares, n), q, k.turned(), op.scale, false));
    values.push_back(product(heads.of(out, out_stride, n), heads.square(shares, n), v, 1, false));
  }
  const auto softmax = PSS_SELECT_ISA(softmax_row);
  run(scores);
  each_score_row(op, [&](int64_t row) {
    softmax(shares + row * op.num_rows, mask + row % op.num_rows * mask_stride, op.num_rows);
  });
  run(values);
}

void masked_attention_backward(const MaskedAttention& op, const float* dy, int64_t dy_stride, const float* shares,
                               float* dq, float* dk, float* dv, int64_t grads_stride) {
  struct DScores;
  const Heads heads{op};
  const int64_t group = op.num_heads / op.num_kv_heads;
  float* d_scores = scratch<DScores>(op.num_heads * op.num_rows * op.num_rows);
  std::vector<Product> of_shares;
  std::vector<std::vector<Product>> of_inputs(group);  // heads of one group add to the same rows, one after another
  for (int64_t n = 0; n < op.num_heads; ++n) {
    const int64_t key_head = n / group, turn = n % group;
    const Matrix q = heads.of(op.q, op.q_stride, n), y = heads.of(dy, dy_stride, n);
    const Matrix k = heads.of(op.k, op.k_stride, key_head), v = heads.of(op.v, op.v_stride, key_head);
    const Matrix share = heads.square(shares, n), d_score = heads.square(d_scores, n);
    of_shares.push_back(product(d_score, y, v.turned(), 1, false));
    auto& inputs = of_inputs[turn];
    inputs.push_back(product(heads.of(dq, grads_stride, n), d_score, k, 1, false));
    inputs.push_back(product(heads.of(dk, grads_stride, key_head), d_score.turned(), q, 1, turn > 0));
    inputs.push_back(product(heads.of(dv, grads_stride, key_head), share.turned(), y, 1, turn > 0));
  }
  const auto backward = PSS_SELECT_ISA(softmax_backward_row);
  run(of_shares);
  each_score_row(op, [&](int64_t row) {
    backward(d_scores + row * op.num_rows, shares + row * op.num_rows, op.num_rows, op.scale);
  });
  for (const auto& inputs : of_inputs) run(inputs);
}

}  // namespace pss
