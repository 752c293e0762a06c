// Four floats at a time: the baseline of aarch64. Included by each_isa.h inside a namespace of its own.
struct Vec {
  using Reg = float32x4_t;
  static constexpr int64_t width = 4;
  static Reg zero() { return vdupq_n_f32(0.0f); }
  static Reg load(const float* p) { return vld1q_f32(p); }
  static Reg load(const bf16* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16));
  }
  static Reg load(const f16* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
  }
  // The first n < width elements; the other lanes are zero and their memory is not touched.
  template <class T>
  static Reg load_first(const T* p, int64_t n) {
    T lanes[width] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static void store(float* p, Reg v) { vst1q_f32(p, v); }
  static Reg fma(Reg a, Reg b, Reg c) { return vfmaq_f32(c, a, b); }
  static void sum4(Reg a, Reg b, Reg c, Reg d, float* out) {
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
  }
};
