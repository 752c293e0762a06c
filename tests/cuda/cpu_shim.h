// Runs CUDA kernels on the CPU, for tests: a block at a time, a fiber for each thread. Races between blocks, speed and
// tensor cores are not to be seen here; out-of-bounds accesses, divergent barriers and wrong numbers are.
//
// Included before a .cu file that g++ compiles. Shared memory is filled with 0xCB before every block.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <ucontext.h>
#include <vector_types.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#define __global__ inline
#define __device__
#define __host__
#define __shared__ static

namespace cpusim {

enum class Waits { no, for_warp, for_block, done };

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Waits waits = Waits::no;
  unsigned mask = 0;  // of the lanes that it waits for
  uint3 index{};
};

constexpr size_t kStackBytes = 1 << 16, kLanes = 32;

inline std::vector<Thread> threads;
inline ucontext_t scheduler;
inline size_t current = 0;
inline uint3 block{};
inline dim3 block_size, grid_size;
inline std::vector<char> shared;
inline std::vector<unsigned long long> slots;  // what a thread offers to its warp
inline std::function<void()> body;

inline void wait(Waits waits, unsigned mask = 0) {
  threads[current].waits = waits, threads[current].mask = mask;
  swapcontext(&threads[current].context, &scheduler);
}

inline void enter() {
  body();
  threads[current].waits = Waits::done;
}

inline void start(Thread& thread, size_t i) {
  thread.stack.reset(new char[kStackBytes]);
  thread.index = {unsigned(i % block_size.x), unsigned(i / block_size.x % block_size.y),
                  unsigned(i / block_size.x / block_size.y)};
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.get();
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = &scheduler;
  makecontext(&thread.context, enter, 0);
}

// Threads of a warp whose partners have arrived or ended go on; says whether any did.
inline bool release_warps() {
  bool any = false;
  for (size_t first = 0; first < threads.size(); first += kLanes) {
    const size_t end = std::min(threads.size(), first + kLanes);
    unsigned arrived = 0, alive = 0;
    for (size_t i = first; i < end; ++i) {
      if (threads[i].waits == Waits::for_warp) arrived |= 1u << (i - first);
      if (threads[i].waits != Waits::done) alive |= 1u << (i - first);
    }
    for (size_t i = first; i < end; ++i)
      if (threads[i].waits == Waits::for_warp && !(threads[i].mask & alive & ~arrived))
        threads[i].waits = Waits::no, any = true;
  }
  return any;
}

// Threads at the block's barrier go on once all others have arrived or ended.
inline bool release_block(bool& done) {
  size_t ended = 0, waiting = 0;
  for (const Thread& thread : threads) ended += thread.waits == Waits::done, waiting += thread.waits == Waits::for_block;
  done = ended == threads.size();
  if (!waiting || waiting + ended != threads.size()) return false;
  for (Thread& thread : threads)
    if (thread.waits == Waits::for_block) thread.waits = Waits::no;
  return true;
}

inline void run_block() {
  threads.clear();
  threads.resize(size_t(block_size.x) * block_size.y * block_size.z);
  slots.assign(threads.size(), 0);
  for (size_t i = 0; i < threads.size(); ++i) start(threads[i], i);
  for (bool done = false; !done;) {
    bool moved = false;
    for (current = 0; current < threads.size(); ++current)
      if (threads[current].waits == Waits::no) moved = true, swapcontext(&scheduler, &threads[current].context);
    moved |= release_warps();
    moved |= release_block(done);
    if (!moved && !done) {
      std::fprintf(stderr, "cpusim: deadlock: threads of a block wait for different barriers\n");
      std::abort();
    }
  }
}

template <class F>
void launch(dim3 grid, dim3 threads_of_block, size_t shared_bytes, F kernel) {
  grid_size = grid, block_size = threads_of_block, body = kernel;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block = {x, y, z};
        shared.assign(shared_bytes, char(0xCB));
        run_block();
      }
}

template <class V>
V exchange(unsigned mask, V value, size_t lane) {
  std::memcpy(&slots[current], &value, sizeof value);
  wait(Waits::for_warp, mask);
  V other;
  std::memcpy(&other, &slots[current / kLanes * kLanes + lane % kLanes], sizeof other);
  wait(Waits::for_warp, mask);
  return other;
}

template <class To, class From>
To bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from);
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace cpusim

#define threadIdx (cpusim::threads[cpusim::current].index)
#define blockIdx (cpusim::block)
#define blockDim (cpusim::block_size)
#define gridDim (cpusim::grid_size)
#define PSS_DYN_SMEM(T, name) T* name = reinterpret_cast<T*>(cpusim::shared.data())
#define PSS_LAUNCH(kernel, grid, block, shared, stream, ...) \
  ((void)(stream), cpusim::launch(grid, block, shared, [=] { kernel(__VA_ARGS__); }))

inline void __syncthreads() { cpusim::wait(cpusim::Waits::for_block); }

template <class V>
V __shfl_xor_sync(unsigned mask, V value, int lanes) {
  return cpusim::exchange(mask, value, cpusim::current % cpusim::kLanes ^ unsigned(lanes));
}

inline int __dp4a(int a, int b, int c) {
  for (int e = 0; e < 4; ++e) c += int((signed char)(a >> 8 * e)) * int((signed char)(b >> 8 * e));
  return c;
}

inline float __int_as_float(int v) { return cpusim::bits<float>(v); }
inline float __uint_as_float(unsigned v) { return cpusim::bits<float>(v); }
inline unsigned __float_as_uint(float v) { return cpusim::bits<unsigned>(v); }
