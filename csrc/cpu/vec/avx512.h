// Sixteen floats at a time. Included by each_isa.h inside a namespace and a target region of its own.
#include "cpu/vec/x86.h"

struct Vec {
  using Reg = __m512;
  static constexpr int64_t width = 16;
  static constexpr int registers = 32;
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg broadcast(float v) { return _mm512_set1_ps(v); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load(const bf16* p) { return widen(*p, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Reg load(const f16* p) { return widen(*p, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  // The first n < width elements; the other lanes are zero and their memory is not touched.
  static Reg load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  template <class T>
  static Reg load_first(const T* p, int64_t n) { return widen(*p, _mm256_maskz_loadu_epi16(first(n), p)); }
  static void store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }  // b where one of them is NaN
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  // The bits of v, times 2^23, plus those of 1: see exp.inc.
  static Reg to_exponent(Reg v) {
    const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(v), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f800000)));
  }
  template <class T>
  static void transpose8(const T* const* rows, float* out, int64_t stride) { transpose8x8(rows, out, stride); }
  static void sum4(Reg a, Reg b, Reg c, Reg d, float* out) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(half(a), half(b)), _mm256_hadd_ps(half(c), half(d)));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
  }

 private:
  static __mmask16 first(int64_t n) { return __mmask16((1u << n) - 1); }
  static __m256 half(Reg v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }
  static Reg widen(bf16, __m256i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)); }
  static Reg widen(f16, __m256i v) { return _mm512_cvtph_ps(v); }
};
