// Moving bytes: new keys and values into the cache, and many tensors of a state in one launch.
#pragma once
#include "cuda/kernel.cuh"
#include "cuda/numbers.cuh"

namespace pss::cuda {

constexpr int kCopyThreads = 256;
constexpr int kCopyBlocks = 64;  // of one copy

__global__ void store_rows(StoreArgs op) {
  const int t = blockIdx.x;
  const long long row = op.kv_rows[t];
  if (row < 0 || row >= op.num_cache_rows) return;
  for (long long i = threadIdx.x; i < op.row_size; i += blockDim.x) {
    store(op.k_cache, row * op.row_size + i, op.cache_type, load(op.k, t * op.k_stride + i, op.row_type));
    store(op.v_cache, row * op.row_size + i, op.cache_type, load(op.v, t * op.v_stride + i, op.row_type));
  }
}

// Sixteen bytes at a time where both ends allow it.
__global__ void copy_bytes(CopyArgs op) {
  const long long from = op.from[blockIdx.y], to = op.to[blockIdx.y], bytes = op.bytes[blockIdx.y];
  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x, step = (long long)gridDim.x * blockDim.x;
  const long long wide = (from | to) % 16 == 0 ? bytes / 16 : 0;
  for (long long i = first; i < wide; i += step)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  for (long long i = wide * 16 + first; i < bytes; i += step)
    reinterpret_cast<char*>(to)[i] = reinterpret_cast<const char*>(from)[i];
}

}  // namespace pss::cuda
