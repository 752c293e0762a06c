// Four floats at a time: the baseline of aarch64. Included by each_isa.h inside a namespace of its own.
struct Vec {
  using Reg = float32x4_t;
  static constexpr int64_t width = 4;
  static constexpr int registers = 32;
  static Reg zero() { return vdupq_n_f32(0.0f); }
  static Reg broadcast(float v) { return vdupq_n_f32(v); }
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
  static Reg add(Reg a, Reg b) { return vaddq_f32(a, b); }
  static Reg sub(Reg a, Reg b) { return vsubq_f32(a, b); }
  static Reg mul(Reg a, Reg b) { return vmulq_f32(a, b); }
  static Reg div(Reg a, Reg b) { return vdivq_f32(a, b); }
  static Reg max(Reg a, Reg b) { return vmaxq_f32(a, b); }  // NaN where one of them is
  static Reg min(Reg a, Reg b) { return vminq_f32(a, b); }
  // The bits of v, times 2^23, plus those of 1: see exp.inc.
  static Reg to_exponent(Reg v) {
    const uint32x4_t shifted = vshlq_n_u32(vreinterpretq_u32_f32(v), 23);
    return vreinterpretq_f32_u32(vaddq_u32(shifted, vdupq_n_u32(0x3f800000)));
  }
  // out[i * stride + j] = rows[j][i] for i, j < 8.
  template <class T>
  static void transpose8(const T* const* rows, float* out, int64_t stride) {
    for (int64_t j = 0; j < 8; j += 4)
      for (int64_t i = 0; i < 8; i += 4) {
        const float32x4x2_t a = vtrnq_f32(load(rows[j] + i), load(rows[j + 1] + i));
        const float32x4x2_t b = vtrnq_f32(load(rows[j + 2] + i), load(rows[j + 3] + i));
        float* column = out + i * stride + j;
        store(column, vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0])));
        store(column + stride, vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1])));
        store(column + 2 * stride, vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0])));
        store(column + 3 * stride, vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1])));
      }
  }
  static void sum4(Reg a, Reg b, Reg c, Reg d, float* out) {
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
  }
};
