#pragma once
#include <cstdint>

#include "cpu/weight_format.h"

namespace pss {

class Team;

// y[t, n] = sum_k x[t, k] W[n, k] + bias[n], W packed in panels of 16 columns, the last one padded. Strides count floats;
// rows of x and y are contiguous.
struct Linear {
  float* y;
  const float* x;
  const void* packed;   // [ceil(N / 16)] panels
  const float* bias;    // [N] or null
  int64_t num_rows, in_features, out_features;
  int64_t y_stride, x_stride;
  WeightFormat format;
  bool int8_rows;       // quantised weights only: x in int8 by groups of 32, summed by integer dot products
};

// Each output is one chain of multiply-adds over k from 0 up, in float: its bits depend on its own row and column
// alone, not on the other rows, their number, or the number of threads. A quantised weight gives the bits of its
// dequantised copy, unless the rows are taken in int8 too.
void linear(const Linear& op);

// The same in pieces, for who has threads at hand: all packs, then all pieces, each in any order.
class LinearPlan {
 public:
  // Words that `packed` must have.
  static int64_t packed_words(const Linear& op);

  LinearPlan(const Linear& op, int threads, float* packed);

  // Where rows are in int8, pack i reads row i alone.
  int64_t num_packs() const { return num_packs_; }
  void pack(int64_t i) const;
  int64_t num_pieces() const { return ranges_ * blocks_; }
  void run(int64_t piece) const;
  // Tells a team that it will come to these pieces.
  void announce(Team& team) const;

 private:
  int64_t depths() const;

  Linear op_;
  float* packed_;
  int64_t num_packs_ = 0, pack_depth_, blocks_, row_block_, tile_rows_, row_words_, num_panels_, step_, ranges_;
};

// y[t] = W[ids[t]], N x K weights as a table of rows; y [T, K] contiguous. Throws std::invalid_argument for an id out of
// range; y is untouched then.
struct GatherRows {
  float* y;
  const int64_t* ids;
  const void* packed;
  int64_t num_rows, in_features, out_features;
  WeightFormat format;
};
void gather_rows(const GatherRows& op);

}  // namespace pss
