// Rows over the OpenMP team that torch uses too (one libgomp in the process, one thread count).
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace pss {

// Below this many multiply-adds on data that is in the cache, waking a team costs more than it saves.
constexpr int64_t kSerialWork = 1 << 20;

// Threads that torch uses.
inline int max_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

inline int num_threads(int64_t rows, int64_t work, int64_t serial_work = kSerialWork) {
  return rows > 1 && work > serial_work ? int(std::min<int64_t>(rows, max_threads())) : 1;
}

// Calls run(thread, row) for each row. `run` must not throw, and no row may depend on another.
template <class F>
void for_each_row(int64_t rows, int threads, const F& run) {
#ifdef _OPENMP
  if (threads > 1) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; ++row) run(omp_get_thread_num(), row);
    return;
  }
#endif
  (void)threads;
  for (int64_t row = 0; row < rows; ++row) run(0, row);
}

// The same for pieces of unequal cost: a thread takes the next one when it is done.
template <class F>
void for_each_piece(int64_t pieces, int threads, const F& run) {
#ifdef _OPENMP
  if (threads > 1) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t piece = 0; piece < pieces; ++piece) run(piece);
    return;
  }
#endif
  (void)threads;
  for (int64_t piece = 0; piece < pieces; ++piece) run(piece);
}

// Threads that go through the same loops one after another in a single parallel region: between two loops they wait a
// little while awake, since most loops of a decoding step are shorter than waking a thread takes, and then give way.
class Team {
 public:
  explicit Team(int threads) : threads_(threads) {}

  int threads() const { return threads_; }

  // Calls run(piece) for each piece, the next one to whoever is free; all are done when it returns. Every thread of the
  // team calls it with the same number of pieces.
  template <class F>
  void for_each(int64_t pieces, const F& run) {
    if (threads_ == 1) {
      for (int64_t piece = 0; piece < pieces; ++piece) run(piece);
      return;
    }
    for (int64_t piece; (piece = next_.fetch_add(1, std::memory_order_relaxed)) < pieces;) run(piece);
    wait();
  }

 private:
  static constexpr int kAwake = 4000;

  void wait() {
    const int64_t loop = loop_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      next_.store(0, std::memory_order_relaxed);
      arrived_.store(0, std::memory_order_relaxed);
      loop_.store(loop + 1, std::memory_order_release);
      return;
    }
    for (int turns = 0; loop_.load(std::memory_order_acquire) == loop; ++turns) {
      if (turns >= kAwake) std::this_thread::yield();
#if defined(__x86_64__)
      else __builtin_ia32_pause();
#elif defined(__aarch64__)
      else __asm__ volatile("yield");
#endif
    }
  }

  const int threads_;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> loop_{0};
};

// Calls run(team) on every thread of a team.
template <class F>
void with_team(int threads, const F& run) {
  Team team(threads);
#ifdef _OPENMP
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    run(team);
    return;
  }
#endif
  run(team);
}

}  // namespace pss
