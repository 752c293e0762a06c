// How the weights of a linear layer lie in memory: panels of 16 columns, in the element type or quantisation of the
// file. The layout is specified in ops/packed_weight.py; the values of a column are those of ops/quantized.py, bit by bit.
#pragma once
#include <cstdint>

#include "cpu/dtype.h"

namespace pss {

enum class WeightFormat : int { f32 = 0, bf16, f16, q8_0, q4_0, q4_1, q4_k, q5_k, q6_k };

constexpr int64_t kPanel = 16;

// w[k] = scale * (code[k] - kOffset) + min, where scale and min hold for kGroup k's; for kGroupsPerScale groups each is
// a float16 times an int8 of the group. A panel is a run of regions, each [..][16]: low bits of the codes, high bits,
// scales, mins, scales of groups, mins of groups.
template <int kLowBits_, int kHighBits_, int kGroup_, int kGroupsPerScale_, bool kHasMin_, int kOffset_>
struct Quantized {
  static constexpr int kLowBits = kLowBits_, kHighBits = kHighBits_, kGroup = kGroup_, kOffset = kOffset_;
  static constexpr int kGroupsPerScale = kGroupsPerScale_;
  static constexpr bool kHasMin = kHasMin_, kHasSubScales = kGroupsPerScale > 1;
  static constexpr int64_t kBlock = kGroup * kGroupsPerScale;

  static int64_t padded(int64_t in_features) { return (in_features + kBlock - 1) / kBlock * kBlock; }
  // Words of a column: of so many k's each. Where those lie that hold k, in the regions of low and of high bits.
  static constexpr int kLowStep = 32 / kLowBits, kHighStep = kHighBits ? 32 / kHighBits : 32;
  static constexpr int64_t low_word(int64_t k) { return k / kLowStep * kPanel * 4; }
  static constexpr int64_t high_word(int64_t k) { return k / kHighStep * kPanel * 4; }
  static constexpr int high_shift(int64_t k) { return int(k % kHighStep) / 4 * kHighBits; }

  static int64_t high_at(int64_t in_features) { return padded(in_features) * kPanel * kLowBits / 8; }
  static int64_t scales_at(int64_t in_features) { return padded(in_features) * kPanel * (kLowBits + kHighBits) / 8; }
  static int64_t mins_at(int64_t in_features) {
    return scales_at(in_features) + padded(in_features) / kBlock * kPanel * int64_t(sizeof(f16));
  }
  static int64_t sub_scales_at(int64_t in_features) {
    return mins_at(in_features) + (kHasMin ? padded(in_features) / kBlock * kPanel * int64_t(sizeof(f16)) : 0);
  }
  static int64_t sub_mins_at(int64_t in_features) {
    return sub_scales_at(in_features) + (kHasSubScales ? padded(in_features) / kGroup * kPanel : 0);
  }
  static int64_t panel_bytes(int64_t in_features) {
    const int64_t bytes = sub_mins_at(in_features) + (kHasSubScales && kHasMin ? padded(in_features) / kGroup * kPanel : 0);
    return (bytes + 63) / 64 * 64;
  }
};

using Q8_0 = Quantized<8, 0, 32, 1, false, 0>;   // codes are signed
using Q4_0 = Quantized<4, 0, 32, 1, false, 8>;
using Q4_1 = Quantized<4, 0, 32, 1, true, 0>;
using Q4_K = Quantized<4, 0, 32, 8, true, 0>;
using Q5_K = Quantized<4, 1, 32, 8, true, 0>;
using Q6_K = Quantized<4, 2, 16, 16, false, 32>;

// Calls f with a value of a quantised format's Quantized<...>.
template <class F>
auto with_quantized(WeightFormat format, const F& f) {
  switch (format) {
    case WeightFormat::q8_0: return f(Q8_0{});
    case WeightFormat::q4_0: return f(Q4_0{});
    case WeightFormat::q4_1: return f(Q4_1{});
    case WeightFormat::q4_k: return f(Q4_K{});
    case WeightFormat::q5_k: return f(Q5_K{});
    default: return f(Q6_K{});
  }
}

// The same for any format: a value of the type that its elements have, or of its Quantized<...>.
template <class F>
auto with_format(WeightFormat format, const F& f) {
  switch (format) {
    case WeightFormat::f32: return f(float{});
    case WeightFormat::bf16: return f(bf16{});
    case WeightFormat::f16: return f(f16{});
    default: return with_quantized(format, f);
  }
}

template <class T>
int64_t panel_bytes_of(int64_t in_features, T*) { return in_features * kPanel * int64_t(sizeof(T)); }
template <int L, int H, int G, int S, bool M, int O>
int64_t panel_bytes_of(int64_t in_features, Quantized<L, H, G, S, M, O>*) {
  return Quantized<L, H, G, S, M, O>::panel_bytes(in_features);
}

}  // namespace pss
