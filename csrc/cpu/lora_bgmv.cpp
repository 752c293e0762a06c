#include "cpu/lora_bgmv.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/parallel.h"

#define PSS_EACH_ISA "cpu/lora_bgmv.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {

// The multiply-adds that the rows ask for, after checking that every index stays in its tensor.
int64_t checked_work(const LoraBgmv& op) {
  for (int64_t s = 0; s < op.num_slots; ++s)
    if (op.ranks[s] < 0 || op.ranks[s] > op.max_rank)
      throw std::invalid_argument("lora_bgmv: ranks[" + std::to_string(s) + "] = " + std::to_string(op.ranks[s]) +
                                  ", must be 0 to " + std::to_string(op.max_rank));
  int64_t work = 0;
  for (int64_t t = 0; t < op.num_rows; ++t) {
    const int64_t slot = op.slot_ids[t];
    if (slot < -1 || slot >= op.num_slots)
      throw std::invalid_argument("lora_bgmv: slot_ids[" + std::to_string(t) + "] = " + std::to_string(slot) +
                                  ", must be -1 (no slot) to " + std::to_string(op.num_slots - 1));
    if (slot >= 0) work += op.ranks[slot] * (op.in_features + op.out_features);
  }
  return work;
}

}  // namespace

void lora_bgmv(const LoraBgmv& op) {
  const int64_t work = checked_work(op);
  if (work == 0) return;
  const auto lora_row = PSS_SELECT_ISA(lora_row);
  const int threads = num_threads(op.num_rows, work);
  const int64_t scratch_size = op.max_rank + std::max(op.in_features, op.out_features);
  std::vector<float> scratch(scratch_size * threads);
  for_each_row(op.num_rows, threads, [&](int thread, int64_t t) {
    const int64_t slot = op.slot_ids[t];
    if (slot >= 0 && op.ranks[slot] > 0) lora_row(op, t, scratch.data() + thread * scratch_size);
  });
}

}  // namespace pss
