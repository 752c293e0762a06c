// Element types of tensors, and their scalar conversions to and from float.
#pragma once
#include <cstdint>
#include <cstring>

namespace pss {

enum class DType : int { f32 = 0, bf16 = 1, f16 = 2 };

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

inline uint32_t bits_of(float v) {
  uint32_t u;
  std::memcpy(&u, &v, sizeof u);
  return u;
}

inline float float_of(uint32_t u) {
  float v;
  std::memcpy(&v, &u, sizeof v);
  return v;
}

inline float to_float(float v) { return v; }

inline float to_float(int8_t v) { return float(v); }

inline float to_float(bf16 v) { return float_of(uint32_t(v.bits) << 16); }

inline float to_float(f16 v) {
  const uint32_t sign = uint32_t(v.bits & 0x8000) << 16, exponent = (v.bits >> 10) & 31, mantissa = v.bits & 0x3ff;
  if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13);
  if (exponent) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = float(mantissa) * 0x1p-24f;  // zero and subnormals
  return sign ? -magnitude : magnitude;
}

inline void from_float(float v, float& out) { out = v; }

// Round to nearest, ties to even, as torch and the GPUs do.
inline void from_float(float v, bf16& out) {
  const uint32_t u = bits_of(v);
  out.bits = v != v ? 0x7fc0 : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

inline void from_float(float v, f16& out) {
  const uint32_t u = bits_of(v), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    out.bits = uint16_t(sign | 0x7e00);
  } else if (magnitude >= 0x477ff000) {  // rounds to 65536 or more: infinity
    out.bits = uint16_t(sign | 0x7c00);
  } else if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 leaves the subnormal's bits, rounded, at the end
    out.bits = uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  } else {
    out.bits = uint16_t(sign | ((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13));
  }
}

}  // namespace pss
