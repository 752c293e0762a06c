// One float at a time: the baseline of every processor. Included by each_isa.h inside a namespace of its own.
struct Vec {
  using Reg = float;
  static constexpr int64_t width = 1;
  static constexpr int registers = 32;
  static Reg zero() { return 0.0f; }
  static Reg broadcast(float v) { return v; }
  template <class T>
  static Reg load(const T* p) { return to_float(*p); }
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
  // The bits of v, times 2^23, plus those of 1: see exp.inc.
  static Reg to_exponent(Reg v) { return float_of((bits_of(v) << 23) + 0x3f800000); }
  // out[i * stride + j] = rows[j][i] for i, j < 8.
  template <class T>
  static void transpose8(const T* const* rows, float* out, int64_t stride) {
    for (int64_t i = 0; i < 8; ++i)
      for (int64_t j = 0; j < 8; ++j) out[i * stride + j] = to_float(rows[j][i]);
  }
  static void sum4(Reg a, Reg b, Reg c, Reg d, float* out) { out[0] = a, out[1] = b, out[2] = c, out[3] = d; }
};
