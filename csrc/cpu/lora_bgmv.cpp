#include "cpu/lora_bgmv.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cpu/arena.h"
#include "cpu/parallel.h"

#define PSS_EACH_ISA "cpu/lora_bgmv.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {
struct LowRows;
}  // namespace

int64_t check(const LoraBgmv& op) {
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

void lora_shrink(const LoraBgmv& op, int64_t row, float* low) {
  const int64_t slot = op.slot_ids[row];
  if (slot >= 0 && op.ranks[slot] > 0)
    PSS_SELECT_ISA(lora_shrink_row)(op, row, scratch<LoraBgmv>(op.in_features), low);
}

void lora_expand(const LoraBgmv& op, int64_t row, const float* low) {
  const int64_t slot = op.slot_ids[row];
  if (slot >= 0 && op.ranks[slot] > 0)
    PSS_SELECT_ISA(lora_expand_row)(op, row, scratch<LoraBgmv>(op.out_features), low);
}

void lora_bgmv(const LoraBgmv& op) {
  const int64_t work = check(op);
  if (work == 0) return;
  const int threads = num_threads(op.num_rows, work);
  for_each_row(op.num_rows, threads, [&](int, int64_t t) {
    float* low = scratch<LowRows>(op.max_rank);
    lora_shrink(op, t, low);
    lora_expand(op, t, low);
  });
}

}  // namespace pss
