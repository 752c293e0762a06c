// One float at a time: the baseline of every processor. Included by each_isa.h inside a namespace of its own.
struct Vec {
  using Reg = float;
  using Words = uint32_t;
  static constexpr int64_t width = 1;
  static constexpr int registers = 32;
  static Reg zero() { return 0.0f; }
  static Reg broadcast(float v) { return v; }
  template <class T>
  static Reg load(const T* p) { return pss::to_float(*p); }
  template <class T>
  static Reg load_first(const T* p, int64_t) { return load(p); }
  static void store(float* p, Reg v) { *p = v; }
  static Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }
  static Reg add(Reg a, Reg b) { return a + b; }
  static Reg sub(Reg a, Reg b) { return a - b; }
  static Reg mul(Reg a, Reg b) { return a * b; }
  static Reg div(Reg a, Reg b) { return a / b; }
  static Reg max(Reg a, Reg b) { return a > b ? a : b; }  // b where one of them is NaN
  static Reg min(Reg a, Reg b) { return a < b ? a : b; }
  static float highest(Reg v) { return v; }
  // Whole numbers of -128 to 127.
  static void store_bytes(int8_t* p, Reg v) { *p = int8_t(v); }
  // The bits of v, times 2^23, plus those of 1: see exp.inc.
  static Reg to_exponent(Reg v) { return float_of((bits_of(v) << 23) + 0x3f800000); }
  static Reg round(Reg v) { return __builtin_rintf(v); }  // to the nearest, ties to even
  static Words load_words(const void* p) {
    Words v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static Words broadcast_word(int32_t v) { return Words(v); }
  template <unsigned shift>
  static Words bits(Words v, int32_t mask) { return v >> shift & Words(mask); }
  template <unsigned shift>
  static Words shift_left(Words v) { return v << shift; }
  static Words shift_right(Words v, int shift) { return v >> shift; }
  static Words either(Words a, Words b) { return a | b; }
  static Reg to_float(Words v) { return float(int32_t(v)); }
  template <int byte>
  static Reg signed_byte(Words v) { return float(int8_t(v >> 8 * byte)); }
  // Partial sums + the products of bytes: words already, of four products; codes and x are -128 to 127.
  static constexpr int kPartialSums = 1 << 30;
  static Words dot(Words partial, Words codes, Words x) {
    for (int b = 0; b < 4; ++b) partial += Words(int32_t(int8_t(codes >> 8 * b)) * int8_t(x >> 8 * b));
    return partial;
  }
  static Words add_partial(Words sums, Words partial) { return sums + partial; }
  static constexpr int32_t kSignedBias = 0;
  static Words dot_signed(Words sums, Words codes, Words x) { return dot(sums, codes, x); }
  // Bits [shift, shift + 4) of the word as a float, less offset.
  template <unsigned shift, int offset>
  static Reg nibble(Words v) { return float(bits<shift>(v, 15)) - float(offset); }
  // out[i * stride + j] = rows[j][i] for i, j < 8, i after i.
  template <class T>
  static void transpose8(const T* const* rows, float* out, int64_t stride) {
    for (int64_t i = 0; i < 8; ++i)
      for (int64_t j = 0; j < 8; ++j) out[i * stride + j] = pss::to_float(rows[j][i]);
  }
  // Rows become columns.
  static void turn(Reg*) {}
  static void sum4(Reg a, Reg b, Reg c, Reg d, float* out) { out[0] = a, out[1] = b, out[2] = c, out[3] = d; }
};
