#include "cpu/masked_attention.h"
#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

namespace {

// Element of a head of row t.
struct Rows {
  const Tensor& data;
  int64_t stride, dim;
  double at(int64_t t, int64_t head, int64_t d) const { return data[t * stride + head * dim + d]; }
};

void check(int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim) {
  Random random(rows * heads + dim);
  const int64_t group = heads / kv_heads, width = (heads + 2 * kv_heads) * dim, stride = width + 3;
  const Tensor qkv = random_rows(random, DType::f32, rows, width, stride);
  const Tensor dy = random_rows(random, DType::f32, rows, heads * dim, heads * dim + 1);
  Tensor mask(DType::f32, rows * rows), shares(DType::f32, heads * rows * rows), out(DType::f32, rows * heads * dim);
  Tensor grads(DType::f32, rows * width);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t u = 0; u < rows; ++u) mask.set(t * rows + u, u <= t && (t + u) % 3 != 1 ? 0.0f : u == t ? 0.0f : -INFINITY);
  const auto* data = static_cast<const float*>(qkv.data());
  const MaskedAttention op{data, data + heads * dim, data + (heads + kv_heads) * dim, rows, heads, kv_heads, dim,
                           stride, stride, stride, 0.3f};
  auto *p = static_cast<float*>(shares.data()), *grad = static_cast<float*>(grads.data());
  masked_attention(op, static_cast<const float*>(mask.data()), rows, p, static_cast<float*>(out.data()));
  masked_attention_backward(op, static_cast<const float*>(dy.data()), heads * dim + 1, p, grad, grad + heads * dim,
                            grad + (heads + kv_heads) * dim, width);

  const Rows x{qkv, stride, dim}, y{dy, heads * dim + 1, dim};
  std::vector<double> slopes(rows * width, 0.0);
  for (int64_t n = 0; n < heads; ++n)
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t key = heads + n / group, value = key + kv_heads;
      std::vector<double> share(rows, 0.0), d_share(rows, 0.0);
      double total = 0, weighted = 0;
      for (int64_t u = 0; u < rows; ++u) {
        double score = mask[t * rows + u];
        for (int64_t d = 0; d < dim; ++d) score += 0.3 * x.at(t, n, d) * x.at(u, key, d);
        total += share[u] = std::exp(score);
        for (int64_t d = 0; d < dim; ++d) d_share[u] += y.at(t, n, d) * x.at(u, value, d);
      }
      for (int64_t u = 0; u < rows; ++u) weighted += (share[u] /= total) * d_share[u];
      for (int64_t d = 0; d < dim; ++d) {
        double expected = 0;
        for (int64_t u = 0; u < rows; ++u) {
          const double d_score = 0.3 * share[u] * (d_share[u] - weighted);
          expected += share[u] * x.at(u, value, d);
          slopes[t * width + n * dim + d] += d_score * x.at(u, key, d);
          slopes[u * width + key * dim + d] += d_score * x.at(t, n, d);
          slopes[u * width + value * dim + d] += share[u] * y.at(t, n, d);
        }
        expect_close(label("masked_attention", {rows, n, t, d}), out[(t * heads + n) * dim + d], expected, 2e-5);
      }
    }
  for (int64_t i = 0; i < rows * width; ++i)
    expect_close(label("masked_attention_backward", {rows, heads, i}), grads[i], slopes[i], 5e-5);
}

}  // namespace

PSS_TEST(masked_attention_over_odd_sizes) {
  check(1, 1, 1, 1);
  check(5, 3, 1, 7);
  check(18, 4, 2, 16);
  check(33, 2, 2, 20);
  check(70, 6, 2, 32);  // on several threads
}
