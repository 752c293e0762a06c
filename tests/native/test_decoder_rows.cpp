#include "cpu/decoder_rows.h"
#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

namespace {

void check_rms_norm(int64_t rows, int64_t size, DType type) {
  Random random(size);
  const int64_t stride = size + 3;
  const Tensor x = random_rows(random, type, rows, size, stride), weight = random_rows(random, type, 1, size, size);
  Tensor y(type, rows * size);
  RmsNorm op{};
  op.y = y.data(), op.x = x.data(), op.weight = weight.data(), op.num_rows = rows, op.size = size;
  op.x_stride = stride, op.eps = 1e-5f, op.type = type;
  rms_norm(op);
  for (int64_t t = 0; t < rows; ++t) {
    double squares = 0;
    for (int64_t i = 0; i < size; ++i) squares += double(x[t * stride + i]) * x[t * stride + i];
    for (int64_t i = 0; i < size; ++i) {
      const double expected = weight[i] * x[t * stride + i] / std::sqrt(squares / double(size) + 1e-5);
      expect_close(label("rms_norm", {size, t, i}), y[t * size + i], expected, tolerance(type));
    }
  }
}

void check_silu_mul(int64_t rows, int64_t size, DType type) {
  Random random(size);
  const int64_t stride = 2 * size + 1;
  Tensor x = random_rows(random, type, rows, 2 * size, stride), y(type, rows * size);
  for (int64_t t = 0; t < rows; ++t)  // steep slopes and both tails
    for (int64_t i = 0; i < size; ++i) x.set(t * stride + i, x[t * stride + i] * (i % 3 ? 8.0f : 95.0f));
  SiluMul op{};
  op.y = y.data(), op.x = x.data(), op.num_rows = rows, op.size = size, op.x_stride = stride, op.type = type;
  silu_mul(op);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < size; ++i) {
      const double gate = x[t * stride + i], up = x[t * stride + size + i];
      expect_close(label("silu_mul", {size, t, i}), y[t * size + i], gate / (1 + std::exp(-gate)) * up, tolerance(type));
    }
}

void check_rope(int64_t rows, int64_t heads, int64_t head_dim, int64_t half, DType type) {
  Random random(head_dim);
  const int64_t stride = heads * head_dim + 5;
  const Tensor x = random_rows(random, type, rows, heads * head_dim, stride);
  Tensor y(type, rows * heads * head_dim);
  std::vector<float> cos(rows * half), sin(rows * half);
  for (int64_t i = 0; i < rows * half; ++i) cos[i] = std::cos(float(i)), sin[i] = std::sin(float(i));
  Rope op{};
  op.y = y.data(), op.x = x.data(), op.cos = cos.data(), op.sin = sin.data(), op.num_rows = rows;
  op.num_heads = heads, op.head_dim = head_dim, op.half = half, op.x_stride = stride, op.type = type;
  op.y_stride = heads * head_dim;
  apply_rope(op);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t n = 0; n < heads; ++n)
      for (int64_t i = 0; i < head_dim; ++i) {
        const auto in = [&](int64_t d) { return double(x[t * stride + n * head_dim + d]); };
        const double c = i < 2 * half ? cos[t * half + i % half] : 0, s = i < 2 * half ? sin[t * half + i % half] : 0;
        const double expected = i < half       ? in(i) * c - in(i + half) * s
                                : i < 2 * half ? in(i) * c + in(i - half) * s
                                               : in(i);
        expect_close(label("apply_rope", {t, n, i}), y[(t * heads + n) * head_dim + i], expected, tolerance(type));
      }
}

}  // namespace

PSS_TEST(rms_norm_over_odd_sizes) {
  for (const DType type : kTypes)
    for (const int64_t size : {1, 7, 16, 31, 100, 577}) check_rms_norm(3, size, type);
  check_rms_norm(600, 901, DType::f32);  // on several threads
}

PSS_TEST(silu_mul_over_odd_sizes) {
  for (const DType type : kTypes)
    for (const int64_t size : {1, 7, 16, 31, 100}) check_silu_mul(3, size, type);
  check_silu_mul(200, 401, DType::f32);
}

PSS_TEST(apply_rope_over_odd_sizes) {
  for (const DType type : kTypes)
    for (const int64_t half : {1, 5, 8, 12, 20}) check_rope(3, 3, 2 * half + half % 2, half, type);
  check_rope(900, 20, 64, 32, DType::f32);
}
