#include "cpu/linear.h"
#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

namespace {

// The value of one weight, spelled from the layout in weight_format.h.
template <class F>
double weight_at(const std::vector<uint8_t>& packed, int64_t in, int64_t n, int64_t k) {
  const uint8_t* panel = packed.data() + n / kPanel * F::panel_bytes(in);
  const int64_t lane = n % kPanel;
  const auto bits = [&](int64_t at, int width) {
    const int64_t per_word = 32 / width, in_word = k % per_word;
    const uint8_t byte = panel[at + (k / per_word * kPanel + lane) * 4 + in_word % 4];
    return byte >> (width * (in_word / 4)) & ((1 << width) - 1);
  };
  const auto half = [&](int64_t at) {
    f16 value;
    std::memcpy(&value, panel + at + (k / F::kBlock * kPanel + lane) * 2, 2);
    return to_float(value);
  };
  const auto sub = [&](int64_t at) { return float(int8_t(panel[at + k / F::kGroup * kPanel + lane])); };
  int code = bits(0, F::kLowBits);
  if constexpr (F::kHighBits > 0) code |= bits(F::high_at(in), F::kHighBits) << F::kLowBits;
  if constexpr (F::kLowBits == 8) code = int8_t(code);
  float scale = half(F::scales_at(in)), min = F::kHasMin ? half(F::mins_at(in)) : 0.0f;
  if constexpr (F::kHasSubScales) scale *= sub(F::sub_scales_at(in));
  if constexpr (F::kHasSubScales && F::kHasMin) min *= sub(F::sub_mins_at(in));
  const float value = scale * float(code - F::kOffset);
  return value + min;
}

template <class F>
std::vector<uint8_t> random_panels(Random& random, int64_t in, int64_t out) {
  const int64_t panels = (out + kPanel - 1) / kPanel, bytes = F::panel_bytes(in);
  std::vector<uint8_t> packed(panels * bytes);
  for (uint8_t& byte : packed) byte = uint8_t(int(random() * 1000.0f));
  for (int64_t p = 0; p < panels; ++p)
    for (int64_t at = F::scales_at(in); at < F::sub_scales_at(in); at += 2) {
      f16 half;
      from_float(random() / 4096.0f, half);
      std::memcpy(packed.data() + p * bytes + at, &half, 2);
    }
  return packed;
}

template <class F>
void check_format(WeightFormat format, int64_t rows, int64_t in, int64_t out) {
  Random random(rows + 31 * in + 977 * out);
  const std::vector<uint8_t> packed = random_panels<F>(random, in, out);
  std::vector<float> x(rows * in), y(rows * out), taken(rows * out);
  for (float& value : x) value = random();
  Linear op{y.data(), x.data(), packed.data(), nullptr, rows, in, out, out, in, format, false};
  linear(op);
  op.y = taken.data(), op.int8_rows = true;
  linear(op);
  std::vector<int64_t> ids(out);
  std::vector<float> table(out * in);
  for (int64_t n = 0; n < out; ++n) ids[n] = n;
  gather_rows({table.data(), ids.data(), packed.data(), out, in, out, format});
  for (int64_t n = 0; n < out; ++n)
    for (int64_t k = 0; k < in; ++k)
      expect(label("gather_rows", {int64_t(format), n, k}), table[n * in + k] == float(weight_at<F>(packed, in, n, k)));
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t n = 0; n < out; ++n) {
      double expected = 0, size = 0;
      for (int64_t k = 0; k < in; ++k) {
        expected += double(x[t * in + k]) * table[n * in + k];
        size += std::abs(double(x[t * in + k]) * table[n * in + k]);
      }
      expect_close(label("linear", {int64_t(format), rows, in, t, n}), y[t * out + n], expected, 1e-5 * size + 1e-6);
      expect_close(label("rows in int8", {int64_t(format), rows, in, t, n}), taken[t * out + n], expected, 0.03 * size + 1e-6);
    }
}

}  // namespace

PSS_TEST(linear_over_quantised_weights) {
  for (const int64_t rows : {1, 3, 8, 9}) {
    check_format<Q8_0>(WeightFormat::q8_0, rows, 100, 33);
    check_format<Q4_0>(WeightFormat::q4_0, rows, 96, 33);
    check_format<Q4_1>(WeightFormat::q4_1, rows, 96, 17);
    check_format<Q4_K>(WeightFormat::q4_k, rows, 1024, 17);
    check_format<Q5_K>(WeightFormat::q5_k, rows, 256, 17);
    check_format<Q6_K>(WeightFormat::q6_k, rows, 256, 17);
  }
}
