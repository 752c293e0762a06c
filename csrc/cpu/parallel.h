// Rows over the OpenMP team that torch uses too (one libgomp in the process, one thread count).
#pragma once
#include <algorithm>
#include <cstdint>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace pss {

// Below this many multiply-adds on data that is in the cache, waking a team costs more than it saves.
constexpr int64_t kSerialWork = 1 << 20;

inline int num_threads(int64_t rows, int64_t work, int64_t serial_work = kSerialWork) {
#ifdef _OPENMP
  if (rows > 1 && work > serial_work) return int(std::min<int64_t>(rows, omp_get_max_threads()));
#endif
  (void)rows, (void)work, (void)serial_work;
  return 1;
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

}  // namespace pss
