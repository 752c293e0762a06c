#include "cpu/peak.h"

#include <atomic>

#include "cpu/parallel.h"

#define PSS_EACH_ISA "cpu/peak.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {

constexpr int64_t kLine = 128;  // floats that one round reads

}  // namespace

int64_t run_multiply_adds(int64_t rounds, int threads) {
  const auto run = PSS_SELECT_ISA(multiply_adds);
  std::atomic<float> kept{0};  // what nobody reads would not be computed
  for_each_row(threads, threads, [&](int, int64_t) { kept = run(rounds); });
  return rounds * threads * PSS_SELECT_ISA(multiply_adds_of_round)();
}

float read_memory(const float* memory, int64_t floats, int threads) {
  const auto sum = PSS_SELECT_ISA(sum_floats);
  std::atomic<float> kept{0};
  for_each_row(threads, threads, [&](int, int64_t i) {
    const int64_t begin = floats * i / threads / kLine * kLine;
    const int64_t end = i + 1 < threads ? floats * (i + 1) / threads / kLine * kLine : floats / kLine * kLine;
    kept = sum(memory + begin, end - begin);
  });
  return kept;
}

}  // namespace pss
