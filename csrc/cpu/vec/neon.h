// Four floats at a time: the baseline of aarch64; PSS_DOT: with dot products of bytes. Included by each_isa.h inside a namespace of its own.
struct Vec {
  using Reg = float32x4_t;
  using Words = int32x4_t;   // as many 32-bit words
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
  static Reg load(const int8_t* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(word))))));
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
  static float highest(Reg v) { return vmaxvq_f32(v); }
  // Whole numbers of -128 to 127.
  static void store_bytes(int8_t* p, Reg v) {
    const int16x4_t half = vmovn_s32(vcvtq_s32_f32(v));
    const int32_t word = vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(half, half))), 0);
    std::memcpy(p, &word, sizeof word);
  }
  // The bits of v, times 2^23, plus those of 1: see exp.inc.
  static Reg to_exponent(Reg v) {
    const uint32x4_t shifted = vshlq_n_u32(vreinterpretq_u32_f32(v), 23);
    return vreinterpretq_f32_u32(vaddq_u32(shifted, vdupq_n_u32(0x3f800000)));
  }
  static Reg round(Reg v) { return vrndnq_f32(v); }  // to the nearest, ties to even
  static Words load_words(const void* p) { return vld1q_s32(static_cast<const int32_t*>(p)); }
  static Words broadcast_word(int32_t v) { return vdupq_n_s32(v); }
  template <unsigned shift>
  static Words bits(Words v, int32_t mask) { return vandq_s32(shift_right(v, shift), broadcast_word(mask)); }
  template <unsigned shift>
  static Words shift_left(Words v) { return vshlq_n_s32(v, shift); }
  static Words shift_right(Words v, int shift) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v), vdupq_n_s32(-shift)));
  }
  static Words either(Words a, Words b) { return vorrq_s32(a, b); }
  static Reg to_float(Words v) { return vcvtq_f32_s32(v); }
  template <int byte>
  static Reg signed_byte(Words v) { return to_float(vshrq_n_s32(vshlq_s32(v, vdupq_n_s32(24 - 8 * byte)), 24)); }
  // Partial sums + the products of bytes: words already, of four products; codes are -128 to 127, x is -127 to 127.
  static constexpr int kPartialSums = 1 << 30;
  static Words dot(Words partial, Words codes, Words x) {
#if PSS_DOT
    return vdotq_s32(partial, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(x));
#else
    const int8x16_t a = vreinterpretq_s8_s32(codes), b = vreinterpretq_s8_s32(x);
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vaddq_s32(partial, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
  }
  static Words add_partial(Words sums, Words partial) { return vaddq_s32(sums, partial); }
  static constexpr int32_t kSignedBias = 0;
  static Words dot_signed(Words sums, Words codes, Words x) { return dot(sums, codes, x); }
  // Bits [shift, shift + 4) of each word as a float, less offset.
  template <unsigned shift, int offset>
  static Reg nibble(Words v) {
    const Reg code = to_float(bits<shift>(v, 15));
    return offset ? sub(code, broadcast(offset)) : code;
  }
  // out[i * stride + j] = rows[j][i] for i, j < 8, i after i.
  template <class T>
  static void transpose8(const T* const* rows, float* out, int64_t stride) {
    for (int64_t i = 0; i < 8; i += 4) {
      Reg left[4] = {load(rows[0] + i), load(rows[1] + i), load(rows[2] + i), load(rows[3] + i)};
      Reg right[4] = {load(rows[4] + i), load(rows[5] + i), load(rows[6] + i), load(rows[7] + i)};
      turn(left);
      turn(right);
      for (int64_t c = 0; c < 4; ++c) {
        store(out + (i + c) * stride, left[c]);
        store(out + (i + c) * stride + 4, right[c]);
      }
    }
  }
  // Rows become columns.
  static void turn(Reg* r) {
    const float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
  }
  static void sum4(Reg a, Reg b, Reg c, Reg d, float* out) {
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
  }
};
