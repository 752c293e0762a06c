// Eight floats at a time. Included by each_isa.h inside a namespace and a target region of its own.
#include "cpu/vec/x86.h"

struct Vec {
  using Reg = __m256;
  static constexpr int64_t width = 8;
  static constexpr int registers = 16;
  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg broadcast(float v) { return _mm256_set1_ps(v); }
  template <class T>
  static Reg load(const T* p) { return load8(p); }
  // The first n < width elements; the other lanes are zero and their memory is not touched.
  template <class T>
  static Reg load_first(const T* p, int64_t n) {
    T lanes[width] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static void store(float* p, Reg v) { _mm256_storeu_ps(p, v); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }  // b where one of them is NaN
  static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  // The bits of v, times 2^23, plus those of 1: see exp.inc.
  static Reg to_exponent(Reg v) {
    const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(v), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(0x3f800000)));
  }
  template <class T>
  static void transpose8(const T* const* rows, float* out, int64_t stride) { transpose8x8(rows, out, stride); }
  static void sum4(Reg a, Reg b, Reg c, Reg d, float* out) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
  }
};
