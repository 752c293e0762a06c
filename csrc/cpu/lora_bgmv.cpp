#include "cpu/lora_bgmv.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cpu/arena.h"
#include "cpu/parallel.h"

namespace pss {
namespace {

constexpr int64_t kLoraRun = 4;        // rows of a run
constexpr int64_t kLoraAhead = 4096;   // bytes of factors that are asked for before they are needed

}  // namespace
}  // namespace pss

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

std::vector<LoraRun> lora_runs(const int32_t* slot_ids, int64_t num_rows) {
  std::vector<LoraRun> runs;
  for (int64_t t = 0; t < num_rows; ++t) {
    if (slot_ids[t] < 0) continue;
    const bool goes_on = !runs.empty() && runs.back().first + runs.back().count == t && runs.back().count < kLoraRun &&
                         slot_ids[runs.back().first] == slot_ids[t];
    if (goes_on) ++runs.back().count;
    else runs.push_back({t, 1});
  }
  return runs;
}

void lora_shrink(const LoraBgmv& op, LoraRun run, float* low) {
  if (op.ranks[op.slot_ids[run.first]] > 0)
    PSS_SELECT_ISA(lora_shrink_run)(op, run, scratch<LoraBgmv>(run.count * op.in_features), low);
}

void lora_expand(const LoraBgmv& op, LoraRun run, const float* low) {
  if (op.ranks[op.slot_ids[run.first]] > 0)
    PSS_SELECT_ISA(lora_expand_run)(op, run, scratch<LoraBgmv>(run.count * op.out_features), low);
}

void lora_bgmv(const LoraBgmv& op) {
  const int64_t work = check(op);
  if (work == 0) return;
  const std::vector<LoraRun> runs = lora_runs(op.slot_ids, op.num_rows);
  for_each_row(int64_t(runs.size()), num_threads(int64_t(runs.size()), work), [&](int, int64_t i) {
    float* low = scratch<LowRows>(runs[i].count * op.max_rank);
    lora_shrink(op, runs[i], low);
    lora_expand(op, runs[i], low);
  });
}

}  // namespace pss
