#include "cpu/linear.h"

#include <algorithm>

#include "cpu/arena.h"
#include "cpu/parallel.h"

#define PSS_EACH_ISA "cpu/linear.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {

// Multiply-adds of one row below which one thread is as fast: its weights pass by in some fifty microseconds.
constexpr int64_t kSerialWeights = 1 << 18;
// Packed inputs that are held at a time: 16 MiB.
constexpr int64_t kMaxPacked = 1 << 22;

// Panels of one piece of work: a multiple of what the widest tiles take, or less where threads would go without.
int64_t piece_panels(int64_t num_panels, int threads) {
  for (int64_t panels : {12, 6, 3})
    if (num_panels >= 4 * panels * threads) return panels;
  return 1;
}

}  // namespace

void linear(const Linear& op) {
  const auto block = PSS_SELECT_ISA(linear_block);
  const auto pack = PSS_SELECT_ISA(linear_pack_rows);
  const int64_t row_block = PSS_SELECT_ISA(linear_row_block)();
  const int64_t num_panels = (op.out_features + 15) / 16;
  const int64_t max_rows = std::max(row_block, kMaxPacked / op.in_features / row_block * row_block);
  for (int64_t start = 0; start < op.num_rows; start += max_rows) {
    const int64_t rows = std::min(max_rows, op.num_rows - start), blocks = (rows + row_block - 1) / row_block;
    const auto rows_of = [&](int64_t b) { return std::min(row_block, rows - b * row_block); };
    const int threads = num_threads(num_panels * blocks, rows * op.in_features * op.out_features, kSerialWeights);
    const float* x = op.x + start * op.x_stride;  // one row is packed as it is
    if (rows > 1) {
      float* packed = scratch<Linear>(rows * op.in_features);
      for_each_row(blocks, num_threads(blocks, rows * op.in_features), [&](int, int64_t b) {
        pack(op, start + b * row_block, rows_of(b), packed + b * row_block * op.in_features);
      });
      x = packed;
    }
    const int64_t step = piece_panels(num_panels * blocks, threads) , ranges = (num_panels + step - 1) / step;
    for_each_row(ranges * blocks, threads, [&](int, int64_t piece) {
      const int64_t first = piece / blocks * step, b = piece % blocks;
      block(op, x + b * row_block * op.in_features, start + b * row_block, rows_of(b), first,
            std::min(first + step, num_panels));
    });
  }
}

}  // namespace pss
