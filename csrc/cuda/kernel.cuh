// How kernels are launched and given shared memory; the tests define both for a run on the CPU.
#pragma once
#ifdef __CUDACC__
#define PSS_DYN_SMEM(T, name) extern __shared__ T name[]
#define PSS_LAUNCH(kernel, grid, block, shared, stream, ...) \
  kernel<<<grid, block, shared, (cudaStream_t)stream>>>(__VA_ARGS__)
#endif
