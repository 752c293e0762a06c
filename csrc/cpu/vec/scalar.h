// One float at a time: the baseline of every processor. Included by each_isa.h inside a namespace of its own.
struct Vec {
  using Reg = float;
  static constexpr int64_t width = 1;
  static Reg zero() { return 0.0f; }
  template <class T>
  static Reg load(const T* p) { return to_float(*p); }
  template <class T>
  static Reg load_first(const T* p, int64_t) { return load(p); }
  static void store(float* p, Reg v) { *p = v; }
  static Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }
  static void sum4(Reg a, Reg b, Reg c, Reg d, float* out) { out[0] = a, out[1] = b, out[2] = c, out[3] = d; }
};
