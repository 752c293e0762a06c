// Eight floats at a time. Included by each_isa.h inside a namespace and a target region of its own.
#include "cpu/vec/x86.h"

struct Vec {
  using Reg = __m256;
  using Words = __m256i;   // as many 32-bit words
  static constexpr int64_t width = 8;
  static constexpr int registers = 16;
  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg broadcast(float v) { return _mm256_set1_ps(v); }
  template <class T>
  static Reg load(const T* p) { return load8(p); }
  static Reg load(const int8_t* p) {
    return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
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
  static float highest(Reg v) { return highest8(v); }
  // Whole numbers of -128 to 127.
  static void store_bytes(int8_t* p, Reg v) { store_bytes8(p, v); }
  // The bits of v, times 2^23, plus those of 1: see exp.inc.
  static Reg to_exponent(Reg v) {
    const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(v), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(0x3f800000)));
  }
  static Reg round(Reg v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT); }  // ties to even
  static Words load_words(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static Words broadcast_word(int32_t v) { return _mm256_set1_epi32(v); }
  template <unsigned shift>
  static Words bits(Words v, int32_t mask) { return _mm256_and_si256(_mm256_srli_epi32(v, shift), broadcast_word(mask)); }
  template <unsigned shift>
  static Words shift_left(Words v) { return _mm256_slli_epi32(v, shift); }
  static Words shift_right(Words v, int shift) { return _mm256_srli_epi32(v, shift); }
  static Words either(Words a, Words b) { return _mm256_or_si256(a, b); }
  static Reg to_float(Words v) { return _mm256_cvtepi32_ps(v); }
  template <int byte>
  static Reg signed_byte(Words v) { return to_float(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * byte), 24)); }
  // Partial sums + the products of bytes; codes are 0 to 127, x is -127 to 127. They are of two products, in 16 bits,
  // that hold as many codes of 1 as kPartialSums; add_partial makes words of them.
  static constexpr int kPartialSums = 32767 / (2 * 127);
  static Words dot(Words partial, Words codes, Words x) {
    return summed(_mm256_add_epi16(partial, _mm256_maddubs_epi16(codes, x)));
  }
  static Words add_partial(Words sums, Words partial) {
    return summed(_mm256_add_epi32(sums, _mm256_madd_epi16(partial, _mm256_set1_epi16(1))));
  }
  // sums + the four products in each word for codes of -127 to 127: |code| times x with the code's sign. kSignedBias times
  // the sum of x is in them too.
  static constexpr int32_t kSignedBias = 0;
  static Words dot_signed(Words sums, Words codes, Words x) {
    return add_partial(sums, dot(_mm256_setzero_si256(), _mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)));
  }
  // Bits [shift, shift + 4) of each word as a float, less offset.
  template <unsigned shift, int offset>
  static Reg nibble(Words v) {
    const Reg code = to_float(bits<shift>(v, 15));
    return offset ? sub(code, broadcast(offset)) : code;
  }
  template <class T>
  static void transpose8(const T* const* rows, float* out, int64_t stride) { transpose8x8(rows, out, stride); }
  // Rows become columns.
  static void turn(Reg* r) { turn8x8(r); }
  static void sum4(Reg a, Reg b, Reg c, Reg d, float* out) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
  }

 private:
  // Otherwise GCC forms all products of an unrolled loop before it adds any: more than there are registers.
  static Words summed(Words v) {
    __asm__("" : "+x"(v));
    return v;
  }
};
