// A batch of lora_bgmv, and the formula written as plain loops.
#pragma once
#include <algorithm>

#include "tests/native/harness.h"

namespace pss::test {

// What a slot holds beyond its rank, and what lies between two rows, stays NaN.
struct LoraCase {
  int64_t in, out, rows, num_slots, max_rank = 1, x_stride, y_stride;
  std::vector<int32_t> ranks, slots;
  DType row;
  Random random;
  Tensor x, before, y, a, b;
  std::vector<float> scaling;

  LoraCase(int64_t in, int64_t out, std::vector<int32_t> of_ranks, std::vector<int32_t> of_slots, DType row, DType lora,
           int64_t x_gap, int64_t y_gap)
      : in(in), out(out), rows(int64_t(of_slots.size())), num_slots(int64_t(of_ranks.size())),
        max_rank(std::max(1, *std::max_element(of_ranks.begin(), of_ranks.end()))), x_stride(in + x_gap),
        y_stride(out + y_gap), ranks(of_ranks), slots(of_slots), row(row), random(in * 1000 + out),
        x(random_rows(random, row, rows, in, x_stride)), before(random_rows(random, row, rows, out, y_stride)), y(before),
        a(lora, num_slots * max_rank * in), b(lora, num_slots * out * max_rank), scaling(num_slots) {
    for (int64_t s = 0; s < num_slots; ++s) {
      scaling[s] = 1.5f + random();
      for (int64_t j = 0; j < ranks[s]; ++j) {
        for (int64_t k = 0; k < in; ++k) a.set((s * max_rank + j) * in + k, random() / std::sqrt(float(in)));
        for (int64_t i = 0; i < out; ++i) b.set((s * out + i) * max_rank + j, random() / std::sqrt(float(ranks[s])));
      }
    }
  }

  // All of an op but the types.
  template <class Op>
  void fill(Op& op) {
    op.y = y.data(), op.x = x.data(), op.lora_a = a.data(), op.lora_b = b.data();
    op.scaling = scaling.data(), op.ranks = ranks.data(), op.slot_ids = slots.data();
    op.num_rows = rows, op.num_slots = num_slots, op.max_rank = max_rank, op.in_features = in, op.out_features = out;
    op.y_stride = y_stride, op.x_stride = x_stride, op.a_stride = max_rank * in, op.b_stride = out * max_rank;
  }

  // A row whose slot is none of the slots is left alone.
  void expect_right() const {
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t s = slots[t] < num_slots ? slots[t] : -1;
      std::vector<double> low(max_rank);
      for (int64_t j = 0; s >= 0 && j < ranks[s]; ++j)
        for (int64_t k = 0; k < in; ++k) low[j] += double(x[t * x_stride + k]) * a[(s * max_rank + j) * in + k];
      for (int64_t i = 0; i < out; ++i) {
        double expected = before[t * y_stride + i];
        for (int64_t j = 0; s >= 0 && j < ranks[s]; ++j)
          expected += scaling[s] * low[j] * b[(s * out + i) * max_rank + j];
        expect_close(label("lora_bgmv", {in, out, t, i}), y[t * y_stride + i], expected, tolerance(row));
      }
    }
  }
};

}  // namespace pss::test
