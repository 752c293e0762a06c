// Low-rank updates, a different slot for each row: shrink to the rank, then expand.
#pragma once
#include "cuda/kernel.cuh"
#include "cuda/numbers.cuh"

namespace pss::cuda {

constexpr int kRanks = 4;       // of a shrink block, a warp each
constexpr int kOutputs = 128;   // of an expand block, a thread each

// The slot of a row, or -1 where there is nothing to add.
inline __device__ int slot_of(const LoraArgs& op, int t) {
  const int slot = op.slot_ids[t];
  return slot >= 0 && slot < op.num_slots && op.ranks[slot] > 0 ? slot : -1;
}

// low[t, j] = scaling[s] * sum_k x[t, k] A[s, j, k]: each lane sums its eights in order, then the lanes are added.
__global__ void lora_shrink(LoraArgs op) {
  const int t = blockIdx.x, j = blockIdx.y * kRanks + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int slot = slot_of(op, t);
  if (slot < 0 || j >= op.ranks[slot]) return;
  const void* x = element(op.x, t * op.x_stride, op.row_type);
  const void* a = element(op.lora_a, slot * op.a_stride + j * op.in_features, op.lora_type);
  const bool whole = op.in_features % kVector == 0;
  const bool x_vector = whole && is_aligned(x, op.row_type), a_vector = whole && is_aligned(a, op.lora_type);
  float sum = 0;
  for (long long k = lane * kVector; k < op.in_features; k += kWarp * kVector) {
    const int count = int(op.in_features - k < kVector ? op.in_features - k : kVector);
    float left[kVector], right[kVector];
    load8(x, k, count, op.row_type, x_vector, left);
    load8(a, k, count, op.lora_type, a_vector, right);
    for (int e = 0; e < kVector; ++e) sum = fmaf(left[e], right[e], sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) op.low[t * op.max_rank + j] = op.scaling[slot] * sum;
}

// y[t, i] += sum_j low[t, j] B[s, i, j], over j in order.
__global__ void lora_expand(LoraArgs op) {
  PSS_DYN_SMEM(float, low);
  const int t = blockIdx.x, slot = slot_of(op, t);
  if (slot < 0) return;
  const int rank = op.ranks[slot];
  for (int j = threadIdx.x; j < rank; j += blockDim.x) low[j] = op.low[t * op.max_rank + j];
  __syncthreads();
  const long long i = (long long)blockIdx.y * kOutputs + threadIdx.x;
  if (i >= op.out_features) return;
  const void* b = element(op.lora_b, slot * op.b_stride + i * op.max_rank, op.lora_type);
  const bool vector = op.max_rank % kVector == 0 && is_aligned(b, op.lora_type);
  float sum = 0;
  for (int j = 0; j < rank; j += kVector) {
    const int count = rank - j < kVector ? rank - j : kVector;
    float factor[kVector];
    load8(b, j, count, op.lora_type, vector, factor);
#pragma unroll
    for (int e = 0; e < kVector; ++e)
      if (e < count) sum = fmaf(low[j + e], factor[e], sum);
  }
  const long long at = t * op.y_stride + i;
  store(op.y, at, op.row_type, load(op.y, at, op.row_type) + sum);
}

}  // namespace pss::cuda
