#include "cpu/linear.h"
#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

namespace {

void check_case(int64_t rows, int64_t in, int64_t out, DType type, bool with_bias) {
  Random random(rows + 31 * in + 977 * out);
  const int64_t x_stride = in + 3, y_stride = out + 2, panels = (out + 15) / 16;
  std::vector<float> x(rows * x_stride, NAN), y(rows * y_stride, -7.0f), bias(out);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t k = 0; k < in; ++k) x[t * x_stride + k] = random();
  for (float& value : bias) value = random();
  Tensor packed(type, panels * in * 16, 0.0f);
  for (int64_t n = 0; n < out; ++n)
    for (int64_t k = 0; k < in; ++k) packed.set((n / 16 * in + k) * 16 + n % 16, random() / std::sqrt(float(in)));
  Linear op{};
  op.x = x.data(), op.y = y.data(), op.packed = packed.data(), op.bias = with_bias ? bias.data() : nullptr;
  op.num_rows = rows, op.in_features = in, op.out_features = out, op.x_stride = x_stride, op.y_stride = y_stride;
  op.format = WeightFormat(int(type));  // the float formats are numbered as the types
  linear(op);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t n = 0; n < out; ++n) {
      double expected = with_bias ? bias[n] : 0.0;
      for (int64_t k = 0; k < in; ++k) expected += double(x[t * x_stride + k]) * packed[(n / 16 * in + k) * 16 + n % 16];
      expect_close(label("linear", {rows, in, out, t, n}), y[t * y_stride + n], expected, 2e-5);
    }
    for (int64_t n = out; n < y_stride; ++n) expect(label("between rows", {t, n}), y[t * y_stride + n] == -7.0f);
  }
  // a row alone has the bits that it has among others
  std::vector<float> alone(out);
  op.x = x.data() + (rows - 1) * x_stride, op.y = alone.data(), op.num_rows = 1, op.y_stride = out;
  linear(op);
  for (int64_t n = 0; n < out; ++n)
    expect(label("the last row alone", {rows, in, out, n}), alone[n] == y[(rows - 1) * y_stride + n]);
}

}  // namespace

PSS_TEST(linear_over_odd_sizes) {
  for (const int64_t rows : {1, 2, 5, 8, 9})
    for (const int64_t in : {1, 7, 16, 65})
      for (const int64_t out : {1, 15, 16, 17, 100}) check_case(rows, in, out, DType::f32, rows % 2);
}

PSS_TEST(linear_over_types) {
  for (const DType type : kTypes)
    for (const int64_t rows : {1, 3, 4, 6, 7, 50}) check_case(rows, 33, 70, type, true);
}

PSS_TEST(linear_deeper_than_one_part_on_several_threads) { check_case(67, 1000, 200, DType::bf16, false); }
