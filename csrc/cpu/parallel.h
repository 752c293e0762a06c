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

// Each row of an op, of so many multiply-adds.
template <class Op>
void run_rows(const Op& op, void (*row)(const Op&, int64_t), int64_t row_work) {
  for_each_row(op.num_rows, num_threads(op.num_rows, op.num_rows * row_work), [&](int, int64_t t) { row(op, t); });
}

// One thread of a team whose threads go through the same loops one after another in a single parallel region: between
// two loops they wait a little while awake, since most loops of a decoding step are shorter than waking a thread takes,
// and then give way.
class Team {
 public:
  // What the threads of a team have in common.
  struct Shared {
    alignas(64) std::atomic<int64_t> taken{0};
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<int64_t> loop{0};
  };

  Team(Shared& shared, int thread, int threads) : shared_(shared), thread_(thread), threads_(threads) {}

  int threads() const { return threads_; }

  // Calls run(piece) for each piece: each thread begins with that of its number, and the next one goes to whoever is
  // free. All are done when it returns. Every thread of the team calls it with the same number of pieces.
  template <class F>
  void for_each(int64_t pieces, const F& run) {
    if (threads_ == 1) {
      for (int64_t piece = 0; piece < pieces; ++piece) run(piece);
      return;
    }
    for (int64_t piece = thread_; piece < pieces;
         piece = threads_ + shared_.taken.fetch_add(1, std::memory_order_relaxed))
      run(piece);
    wait();
  }

  // What the threads read in a loop to come, piece after piece: each fetches those that it is likely to take into its
  // second-level cache while it has to wait.
  void expect(const void* pieces, int64_t piece_bytes, int64_t num_pieces) {
    next_ = static_cast<const char*>(pieces) + thread_ * piece_bytes;
    piece_end_ = next_ + piece_bytes;
    piece_bytes_ = piece_bytes;
    left_ = std::min(kExpected, (num_pieces - thread_ + threads_ - 1) / threads_ * piece_bytes);
  }

 private:
  static constexpr int kAwake = 4000, kLine = 64;
  static constexpr int64_t kExpected = 128 << 10;  // half of a small second-level cache

  void fetch_line() {
    __builtin_prefetch(next_, 0, 2);
    left_ -= kLine;
    if ((next_ += kLine) < piece_end_) return;
    next_ = piece_end_ + (threads_ - 1) * piece_bytes_;
    piece_end_ = next_ + piece_bytes_;
  }

  void wait() {
    const int64_t loop = shared_.loop.load(std::memory_order_relaxed);
    if (shared_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      shared_.taken.store(0, std::memory_order_relaxed);
      shared_.arrived.store(0, std::memory_order_relaxed);
      shared_.loop.store(loop + 1, std::memory_order_release);
      return;
    }
    for (int turns = 0; shared_.loop.load(std::memory_order_acquire) == loop; ++turns) {
      if (turns >= kAwake) std::this_thread::yield();
      else if (left_ > 0) fetch_line();
#if defined(__x86_64__)
      else __builtin_ia32_pause();
#elif defined(__aarch64__)
      else __asm__ volatile("yield");
#endif
    }
  }

  Shared& shared_;
  const int thread_, threads_;
  const char *next_ = nullptr, *piece_end_ = nullptr;
  int64_t piece_bytes_ = 0, left_ = 0;
};

// Calls run(team) on every thread of a team, each with its own; of at most so many threads, if OpenMP gives them.
template <class F>
void with_team(int threads, const F& run) {
  Team::Shared shared;
#ifdef _OPENMP
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
      Team team(shared, omp_get_thread_num(), omp_get_num_threads());
      run(team);
    }
    return;
  }
#endif
  Team team(shared, 0, 1);
  run(team);
}

// Calls run(piece) for pieces of unequal cost: a thread takes the next one when it is done. As for rows, `run` must not
// throw, and no piece may depend on another.
template <class F>
void for_each_piece(int64_t pieces, int threads, const F& run) {
  with_team(threads, [&](Team& team) { team.for_each(pieces, run); });
}

}  // namespace pss
