#include "cpu/backward_rows.h"
#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

namespace {

const float* floats(const Tensor& t) { return static_cast<const float*>(t.data()); }

void check_rms_norm_backward(int64_t rows, int64_t size, bool beside) {
  Random random(size);
  const int64_t x_stride = size + 3, dy_stride = size + 1;
  const Tensor x = random_rows(random, DType::f32, rows, size, x_stride);
  const Tensor dy = random_rows(random, DType::f32, rows, size, dy_stride);
  const Tensor residual = random_rows(random, DType::f32, rows, size, size);
  const Tensor weight = random_rows(random, DType::f32, 1, size, size);
  Tensor dx(DType::f32, rows * size);
  rms_norm_backward({static_cast<float*>(dx.data()), floats(dy), floats(x), floats(weight),
                     beside ? floats(residual) : nullptr, rows, size, dy_stride, x_stride, 1e-5f});
  for (int64_t t = 0; t < rows; ++t) {
    double squares = 0, products = 0;
    for (int64_t i = 0; i < size; ++i) {
      squares += double(x[t * x_stride + i]) * x[t * x_stride + i];
      products += double(weight[i]) * dy[t * dy_stride + i] * x[t * x_stride + i];
    }
    const double r = 1 / std::sqrt(squares / double(size) + 1e-5);
    for (int64_t i = 0; i < size; ++i) {
      const double g = double(weight[i]) * dy[t * dy_stride + i];
      const double slope = r * (g - x[t * x_stride + i] * r * r * products / double(size));
      expect_close(label("rms_norm_backward", {size, t, i}), dx[t * size + i],
                   slope + (beside ? residual[t * size + i] : 0), 2e-5);
    }
  }
}

void check_silu_mul_backward(int64_t rows, int64_t size) {
  Random random(size);
  const int64_t x_stride = 2 * size + 1, dy_stride = size + 2;
  const Tensor x = random_rows(random, DType::f32, rows, 2 * size, x_stride);
  const Tensor dy = random_rows(random, DType::f32, rows, size, dy_stride);
  Tensor dx(DType::f32, rows * 2 * size);
  silu_mul_backward({static_cast<float*>(dx.data()), floats(dy), floats(x), rows, size, dy_stride, x_stride});
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < size; ++i) {
      const double gate = x[t * x_stride + i], up = x[t * x_stride + size + i], d = dy[t * dy_stride + i];
      const double share = 1 / (1 + std::exp(-gate));
      const double d_gate = d * up * share * (1 + gate * (1 - share));
      expect_close(label("d_gate", {size, t, i}), dx[t * 2 * size + i], d_gate, 2e-5);
      expect_close(label("d_up", {size, t, i}), dx[t * 2 * size + size + i], d * gate * share, 2e-5);
    }
}

void check_cross_entropy(int64_t rows, int64_t size, bool with_grad) {
  Random random(size);
  const int64_t stride = size + 1;
  Tensor x = random_rows(random, DType::f32, rows, size, stride), losses(DType::f32, rows);
  const Tensor before = x;
  std::vector<int64_t> labels(rows);
  for (int64_t t = 0; t < rows; ++t) labels[t] = t * 7 % size;
  cross_entropy({static_cast<float*>(losses.data()), static_cast<float*>(x.data()), labels.data(), rows, size, stride,
                 with_grad});
  for (int64_t t = 0; t < rows; ++t) {
    double total = 0;
    for (int64_t i = 0; i < size; ++i) total += std::exp(double(before[t * stride + i]));
    expect_close(label("loss", {size, t}), losses[t], std::log(total) - before[t * stride + labels[t]], 2e-5);
    for (int64_t i = 0; i < size; ++i) {
      const double value = before[t * stride + i], slope = std::exp(value) / total - (i == labels[t]);
      expect_close(label("slope", {size, t, i}), x[t * stride + i], with_grad ? slope : value, 2e-5);
    }
  }
}

}  // namespace

PSS_TEST(rms_norm_backward_over_odd_sizes) {
  for (const int64_t size : {1, 7, 16, 31, 100, 577})
    for (const bool beside : {false, true}) check_rms_norm_backward(3, size, beside);
  check_rms_norm_backward(600, 901, true);  // on several threads
}

PSS_TEST(silu_mul_backward_over_odd_sizes) {
  for (const int64_t size : {1, 7, 16, 31, 100}) check_silu_mul_backward(3, size);
  check_silu_mul_backward(200, 401);
}

PSS_TEST(cross_entropy_over_odd_sizes) {
  for (const int64_t size : {1, 7, 16, 31, 100, 577})
    for (const bool with_grad : {false, true}) check_cross_entropy(3, size, with_grad);
  check_cross_entropy(90, 1001, true);
}
