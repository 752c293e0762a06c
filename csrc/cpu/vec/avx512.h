// Sixteen floats at a time; PSS_DOT: with dot products of bytes. Included by each_isa.h inside a namespace and a target region of its own.
#include "cpu/vec/x86.h"

struct Vec {
  using Reg = __m512;
  using Words = __m512i;   // as many 32-bit words
  static constexpr int64_t width = 16;
  static constexpr int registers = 32;
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg broadcast(float v) { return _mm512_set1_ps(v); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load(const bf16* p) { return widen(*p, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Reg load(const f16* p) { return widen(*p, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Reg load(const int8_t* p) {
    const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8));
    return to_float(_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_cvtepi8_epi32(low)), _mm256_cvtepi8_epi32(high), 1));
  }
  // The first n < width elements; the other lanes are zero and their memory is not touched.
  static Reg load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  template <class T>
  static Reg load_first(const T* p, int64_t n) { return widen(*p, _mm256_maskz_loadu_epi16(first(n), p)); }
  static Reg load_first(const int8_t* p, int64_t n) {
    int8_t lanes[width] = {};
    std::memcpy(lanes, p, n);
    return load(lanes);
  }
  static void store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
  static Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }  // b where one of them is NaN
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static float highest(Reg v) { return highest8(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1))); }
  // Whole numbers of -128 to 127.
  static void store_bytes(int8_t* p, Reg v) {
    store_bytes8(p, _mm512_castps512_ps256(v));
    store_bytes8(p + 8, _mm512_extractf32x8_ps(v, 1));
  }
  // The bits of v, times 2^23, plus those of 1: see exp.inc.
  static Reg to_exponent(Reg v) {
    const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(v), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(0x3f800000)));
  }
  static Reg round(Reg v) { return _mm512_roundscale_ps(v, 0); }  // to the nearest, ties to even
  static Words load_words(const void* p) { return _mm512_loadu_si512(p); }
  static Words broadcast_word(int32_t v) { return _mm512_set1_epi32(v); }
  template <unsigned shift>
  static Words bits(Words v, int32_t mask) { return _mm512_and_si512(_mm512_srli_epi32(v, shift), broadcast_word(mask)); }
  template <unsigned shift>
  static Words shift_left(Words v) { return _mm512_slli_epi32(v, shift); }
  static Words shift_right(Words v, int shift) { return _mm512_srli_epi32(v, shift); }
  static Words either(Words a, Words b) { return _mm512_or_si512(a, b); }
  static Reg to_float(Words v) { return _mm512_cvtepi32_ps(v); }
  template <int byte>
  static Reg signed_byte(Words v) { return to_float(_mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * byte), 24)); }
#if PSS_DOT
  // Partial sums + the products of bytes: words already, of four products; codes are 0 to 127, x is -127 to 127.
  static constexpr int kPartialSums = 1 << 30;
  static Words dot(Words partial, Words codes, Words x) { return _mm512_dpbusd_epi32(partial, codes, x); }
  static Words add_partial(Words sums, Words partial) { return _mm512_add_epi32(sums, partial); }
  // sums + the four products in each word for codes of -128 to 127. kSignedBias times the sum of x is in them too.
  static constexpr int32_t kSignedBias = 128;
  static Words dot_signed(Words sums, Words codes, Words x) {
    return dot(sums, _mm512_xor_si512(codes, _mm512_set1_epi8(-128)), x);
  }
#else
  // Partial sums + the products of bytes; codes are 0 to 127, x is -127 to 127. They are of two products, in 16 bits,
  // that hold as many codes of 1 as kPartialSums; add_partial makes words of them.
  static constexpr int kPartialSums = 32767 / (2 * 127);
  static Words dot(Words partial, Words codes, Words x) {
    return _mm512_add_epi16(partial, _mm512_maddubs_epi16(codes, x));
  }
  static Words add_partial(Words sums, Words partial) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(partial, _mm512_set1_epi16(1)));
  }
  // sums + the four products in each word for codes of -127 to 127: |code| times x with the code's sign. kSignedBias times
  // the sum of x is in them too.
  static constexpr int32_t kSignedBias = 0;
  static Words dot_signed(Words sums, Words codes, Words x) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(codes), zero, x);
    return add_partial(sums, dot(zero, _mm512_abs_epi8(codes), signed_x));
  }
#endif
  // Bits [shift, shift + 4) of each word as a float, less offset: looked up, since only four bits of an index count.
  template <unsigned shift, int offset>
  static Reg nibble(Words v) {
    constexpr float o = offset;
    const __m512 values = _mm512_setr_ps(0 - o, 1 - o, 2 - o, 3 - o, 4 - o, 5 - o, 6 - o, 7 - o, 8 - o, 9 - o, 10 - o,
                                         11 - o, 12 - o, 13 - o, 14 - o, 15 - o);
    return _mm512_permutexvar_ps(_mm512_srli_epi32(v, shift), values);
  }
  template <class T>
  static void transpose8(const T* const* rows, float* out, int64_t stride) { transpose8x8(rows, out, stride); }
  // Rows become columns.
  static void turn(Reg* r) {
    Reg s[16];
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[i], r[i + 1]));
      const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(r[i], r[i + 1]));
      const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r[i + 2], r[i + 3]));
      const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[i + 2], r[i + 3]));
      // quarter l of s[i + j]: column 4 l + j of four rows
      s[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
      s[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
      s[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
      s[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Reg even_low = _mm512_shuffle_f32x4(s[j], s[4 + j], 0x88), even_high = _mm512_shuffle_f32x4(s[8 + j], s[12 + j], 0x88);
      const Reg odd_low = _mm512_shuffle_f32x4(s[j], s[4 + j], 0xdd), odd_high = _mm512_shuffle_f32x4(s[8 + j], s[12 + j], 0xdd);
      r[j] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
      r[4 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
      r[8 + j] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
      r[12 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
  }
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
