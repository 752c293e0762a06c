#include "cpu/peak.h"

#include <atomic>

#include "cpu/parallel.h"

#define PSS_EACH_ISA "cpu/peak.inc"
#include "cpu/each_isa.h"

namespace pss {

int64_t run_multiply_adds(int64_t rounds, int threads) {
  const auto run = PSS_SELECT_ISA(multiply_adds);
  std::atomic<float> kept{0};  // what nobody reads would not be computed
  for_each_row(threads, threads, [&](int, int64_t) { kept = run(rounds); });
  return rounds * threads * PSS_SELECT_ISA(multiply_adds_of_round)();
}

}  // namespace pss
