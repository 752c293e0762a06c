#include "cpu/lora_bgmv.h"
#include "tests/native/lora_cases.h"

using namespace pss;
using namespace pss::test;

namespace {

void check_case(int64_t in, int64_t out, std::vector<int32_t> ranks, std::vector<int32_t> slots, DType row, DType lora) {
  LoraCase c(in, out, ranks, slots, row, lora, 3, 5);
  LoraBgmv op{};
  c.fill(op);
  op.row_type = row, op.lora_type = FactorType(int(lora));
  lora_bgmv(op);
  c.expect_right();
}

}  // namespace

PSS_TEST(lora_bgmv_over_odd_sizes) {
  for (const int64_t in : {1, 7, 16, 33, 100})
    for (const int64_t out : {1, 5, 18, 67}) check_case(in, out, {5, 0, 9}, {0, -1, 2, 1, 0}, DType::f32, DType::f32);
}

PSS_TEST(lora_bgmv_over_ranks) {
  for (const int32_t rank : {1, 3, 8, 17, 32, 33, 64}) check_case(37, 29, {rank}, {0}, DType::f32, DType::bf16);
}

PSS_TEST(lora_bgmv_over_factors_in_int8) {
  for (const int64_t in : {5, 16, 70})
    for (const int64_t out : {3, 21}) {
      Random random(in + out);
      const int64_t rows = 5, rank = 7;
      const std::vector<int32_t> ranks{7, 4}, slots{0, 0, 1, -1, 1};
      const std::vector<float> scaling{0.01f, 0.02f};
      std::vector<float> x(rows * in), y(rows * out, 1.0f);
      std::vector<int8_t> a(2 * rank * in), b(2 * out * rank);
      for (float& value : x) value = random();
      for (int8_t& code : a) code = int8_t(random.below(255) - 127);
      for (int8_t& code : b) code = int8_t(random.below(255) - 127);
      lora_bgmv({y.data(), x.data(), a.data(), b.data(), scaling.data(), ranks.data(), slots.data(), rows, 2, rank, in, out,
                 out, in, rank * in, out * rank, DType::f32, FactorType::i8});
      for (int64_t t = 0; t < rows; ++t)
        for (int64_t i = 0; i < out; ++i) {
          double expected = 1, size = 1;
          for (int64_t j = 0; slots[t] >= 0 && j < ranks[slots[t]]; ++j)
            for (int64_t k = 0; k < in; ++k) {
              const double term = double(scaling[slots[t]]) * x[t * in + k] * a[(slots[t] * rank + j) * in + k] *
                                  b[(slots[t] * out + i) * rank + j];
              expected += term, size += std::abs(term);
            }
          expect_close(label("int8", {in, out, t, i}), y[t * out + i], expected, 1e-6 * size);
        }
    }
}

PSS_TEST(lora_bgmv_over_types) {
  for (const DType row : kTypes)
    for (const DType lora : kTypes) check_case(41, 23, {4, 3}, {1, 0, -1}, row, lora);
}

PSS_TEST(lora_bgmv_on_several_threads) {
  check_case(515, 517, {33, 16}, std::vector<int32_t>{0, 1, 1, 0, -1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0,
                                                      1, 1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0},
             DType::f32, DType::bf16);
}

PSS_TEST(lora_bgmv_refuses_slots_out_of_range) {
  expect_refused("slot 2 of 2", "slot_ids[0]", [] { check_case(8, 8, {1, 1}, {2}, DType::f32, DType::f32); });
}
