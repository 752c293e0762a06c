#include "cuda/launch.h"
#include "tests/native/lora_cases.h"

using namespace pss;
using namespace pss::test;

namespace {

void check_case(int64_t in, int64_t out, std::vector<int> ranks, std::vector<int> slots, DType row, DType lora) {
  LoraCase c(in, out, ranks, slots, row, lora, 8, 8);
  std::vector<float> low(c.rows * c.max_rank, NAN);
  cuda::LoraArgs op{};
  c.fill(op);
  op.low = low.data(), op.row_type = int(row), op.lora_type = int(lora);
  cuda::lora_bgmv(op, nullptr);
  c.expect_right();
}

}  // namespace

PSS_TEST(lora_bgmv_over_odd_sizes) {
  for (const int64_t in : {1, 7, 264, 523})
    for (const int64_t out : {1, 18, 131}) check_case(in, out, {5, 0, 9}, {0, -1, 2, 1, 3}, DType::f32, DType::f32);
}

PSS_TEST(lora_bgmv_over_ranks) {
  for (const int rank : {1, 8, 17, 32, 64}) check_case(64, 29, {rank}, {0}, DType::f32, DType::bf16);
}

PSS_TEST(lora_bgmv_over_types) {
  for (const DType row : kTypes)
    for (const DType lora : kTypes) check_case(48, 24, {8, 3}, {1, 0, -1}, row, lora);
}
