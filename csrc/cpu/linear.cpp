#include "cpu/linear.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "cpu/arena.h"
#include "cpu/int8_rows.h"
#include "cpu/parallel.h"

#define PSS_EACH_ISA "cpu/linear.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {

// Multiply-adds of one row below which one thread is as fast: its weights pass by in some fifty microseconds.
constexpr int64_t kSerialWeights = 1 << 18;
// K's of a tile that are packed at a time where there are fewer tiles than threads.
constexpr int64_t kPackDepth = 96;
// Packed inputs that are held at a time: 16 MiB.
constexpr int64_t kMaxPacked = 1 << 22;

struct Dequantized;

// Panels of one piece of work: a multiple of what the widest tiles take, or less where threads would go without.
int64_t piece_panels(int64_t num_panels, int threads) {
  for (int64_t panels : {12, 6, 3})
    if (num_panels >= 4 * panels * threads) return panels;
  return 1;
}

// Of a packed row.
int64_t row_words(const Linear& op) { return op.int8_rows ? int8_row_words(op.in_features) : op.in_features; }

}  // namespace

int64_t LinearPlan::packed_words(const Linear& op) {
  return op.num_rows > 1 || op.int8_rows ? op.num_rows * row_words(op) : 0;
}

LinearPlan::LinearPlan(const Linear& op, int threads, float* packed)
    : op_(op), packed_(packed), row_block_(PSS_SELECT_ISA(linear_row_block)()),
      tile_rows_(PSS_SELECT_ISA(linear_tile_rows)()), row_words_(row_words(op)),
      num_panels_((op.out_features + kPanel - 1) / kPanel) {
  blocks_ = (op.num_rows + row_block_ - 1) / row_block_;
  const int64_t tiles = (op.num_rows + tile_rows_ - 1) / tile_rows_;
  pack_depth_ = tiles < threads ? kPackDepth : op.in_features;
  if (op.int8_rows) num_packs_ = op.num_rows;
  else if (packed_words(op)) num_packs_ = tiles * depths();
  else packed_ = const_cast<float*>(op.x);  // one row of floats is packed as it is
  step_ = piece_panels(num_panels_ * blocks_, threads);
  ranges_ = (num_panels_ + step_ - 1) / step_;
}

int64_t LinearPlan::depths() const { return (op_.in_features + pack_depth_ - 1) / pack_depth_; }

void LinearPlan::pack(int64_t i) const {
  const int64_t row = op_.int8_rows ? i : i / depths() * tile_rows_, first = row / row_block_ * row_block_;
  const int64_t rows = std::min(row_block_, op_.num_rows - first);
  float* const block = packed_ + first * row_words_;
  if (op_.int8_rows) return pack_int8_row(op_, first, rows, i - first, block);
  const int64_t begin = i % depths() * pack_depth_, end = std::min(begin + pack_depth_, op_.in_features);
  PSS_SELECT_ISA(linear_pack_tile)(op_, first, rows, (row - first) / tile_rows_, begin, end, block);
}

void LinearPlan::run(int64_t piece) const {
  const int64_t first = piece / blocks_ * step_, last = std::min(first + step_, num_panels_);
  const int64_t row = piece % blocks_ * row_block_, rows = std::min(row_block_, op_.num_rows - row);
  const float* x = packed_ + row * row_words_;
  if (op_.int8_rows) return multiply_int8(op_, x, row, rows, first, last);
  PSS_SELECT_ISA(linear_block)(op_, x, row, rows, first, last, scratch<Dequantized>(PSS_SELECT_ISA(linear_scratch)()));
}

void LinearPlan::announce(Team& team) const {
  const int64_t bytes = with_format(op_.format, [&](auto f) { return panel_bytes_of(op_.in_features, &f); });
  team.expect(op_.packed, step_ * bytes, num_panels_ / step_);
}

void linear(const Linear& whole) {
  const int64_t row_block = PSS_SELECT_ISA(linear_row_block)(), words = row_words(whole);
  const int64_t max_rows = std::max(row_block, kMaxPacked / words / row_block * row_block);
  for (int64_t start = 0; start < whole.num_rows; start += max_rows) {
    Linear op = whole;
    op.num_rows = std::min(max_rows, whole.num_rows - start);
    op.x += start * op.x_stride;
    op.y += start * op.y_stride;
    const int64_t pieces = (op.out_features + kPanel - 1) / kPanel * ((op.num_rows + row_block - 1) / row_block);
    const int threads = num_threads(pieces, op.num_rows * op.in_features * op.out_features, kSerialWeights);
    float* packed = scratch<Linear>(LinearPlan::packed_words(op));
    with_team(threads, [&](Team& team) {
      const LinearPlan plan(op, threads, packed);
      if (plan.num_packs()) team.for_each(plan.num_packs(), [&](int64_t i) { plan.pack(i); });
      team.for_each(plan.num_pieces(), [&](int64_t i) { plan.run(i); });
    });
  }
}

void gather_rows(const GatherRows& op) {
  for (int64_t t = 0; t < op.num_rows; ++t)
    if (op.ids[t] < 0 || op.ids[t] >= op.out_features)
      throw std::invalid_argument("gather_rows: ids[" + std::to_string(t) + "] = " + std::to_string(op.ids[t]) +
                                  ", must be 0 to " + std::to_string(op.out_features - 1));
  const auto gather_row = PSS_SELECT_ISA(gather_row);
  const int threads = num_threads(op.num_rows, op.num_rows * op.in_features * kPanel);
  for_each_row(op.num_rows, threads, [&](int, int64_t t) {
    gather_row(op, t, scratch<Dequantized>(op.in_features * kPanel));
  });
}

}  // namespace pss
