#pragma once
#include <cstdint>
#include <vector>

#include "cpu/dtype.h"

namespace pss {

// int8: whole numbers, whose step is part of the scaling.
enum class FactorType : int { f32 = 0, bf16 = 1, f16 = 2, i8 = 3 };

// y[t] += scaling[s] * (x[t] A[s, :r]^T) B[s, :, :r]^T   with s = slot_ids[t], r = ranks[s]; rows with s = -1 are left alone.
// Strides count elements. Within a slot A [R, H_in] and B [H_out, R] are contiguous; x and y are contiguous within a row.
struct LoraBgmv {
  void* y;
  const void* x;
  const void* lora_a;
  const void* lora_b;
  const float* scaling;      // [S]
  const int32_t* ranks;      // [S], 0: the slot leaves this tensor alone
  const int32_t* slot_ids;   // [T]
  int64_t num_rows, num_slots, max_rank, in_features, out_features;
  int64_t y_stride, x_stride, a_stride, b_stride;
  DType row_type;    // of x and y
  FactorType lora_type;   // of A and B
};

// Sums in float, in an order that depends on nothing but the row's own shapes: a row's bits do not change with the
// other rows, their number, or the number of threads. Throws std::invalid_argument for a slot or a rank out of range;
// y is untouched then.
void lora_bgmv(const LoraBgmv& op);

// Rows side by side that have the same slot and read its factors together.
struct LoraRun {
  int64_t first, count;
};
// All runs of a batch; rows without a slot are in none.
std::vector<LoraRun> lora_runs(const int32_t* slot_ids, int64_t num_rows);

// The same in two loops over the runs, for who has threads at hand: all shrinks, then all expands. `low` [count, max_rank]
// of a run is what goes from one to the other. `check` throws as lora_bgmv does and returns the multiply-adds.
int64_t check(const LoraBgmv& op);
void lora_shrink(const LoraBgmv& op, LoraRun run, float* low);
void lora_expand(const LoraBgmv& op, LoraRun run, const float* low);

}  // namespace pss
