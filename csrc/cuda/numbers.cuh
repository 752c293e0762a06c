// Elements of any type as floats; device code without host includes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/args.h"

namespace pss::cuda {

constexpr int kWarp = 32;
constexpr int kVector = 8;  // elements of one load

inline __device__ float infinity() { return __int_as_float(0x7f800000); }

inline __device__ float float_of_f8(unsigned bits) {
  const unsigned magnitude = bits & 0x7f;
  if (magnitude == 0x7f) return __int_as_float(0x7fc00000);
  // the bits as those of a half: its exponent is 8 less
  const float value = __half2float(__ushort_as_half((unsigned short)(magnitude << 7))) * 256.0f;
  return bits & 0x80 ? -value : value;
}

inline __device__ unsigned f8_of_float(float v) {
  const unsigned bits = __float_as_uint(v), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7f;
  if (magnitude >= 0x43e00000) return sign | 0x7e;  // beyond 448
  // below 2^-6 the steps are of 2^-9: adding 2^14 leaves them, rounded, at the end of the mantissa
  if (magnitude < 0x3c800000) return sign | (__float_as_uint(__uint_as_float(magnitude) + 16384.0f) - 0x46800000);
  return sign | (magnitude + 0x7ffff + (magnitude >> 20 & 1) - (120u << 23)) >> 20;
}

inline __device__ int bytes_of(int type) { return type == kF32 ? 4 : type >= kF8 ? 1 : 2; }

inline __device__ const void* element(const void* base, long long i, int type) {
  return static_cast<const char*>(base) + i * bytes_of(type);
}

inline __device__ float load(const void* base, long long i, int type) {
  switch (type) {
    case kF32: return static_cast<const float*>(base)[i];
    case kBF16: return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[i]);
    case kF16: return __half2float(static_cast<const __half*>(base)[i]);
    default: return float_of_f8(static_cast<const unsigned char*>(base)[i]);
  }
}

inline __device__ void store(void* base, long long i, int type, float v) {
  switch (type) {
    case kF32: static_cast<float*>(base)[i] = v; break;
    case kBF16: static_cast<__nv_bfloat16*>(base)[i] = __float2bfloat16(v); break;
    case kF16: static_cast<__half*>(base)[i] = __float2half(v); break;
    default: static_cast<unsigned char*>(base)[i] = (unsigned char)f8_of_float(v);
  }
}

inline __device__ bool is_aligned(const void* p, int type) {
  return reinterpret_cast<unsigned long long>(p) % (type == kF32 ? 16 : kVector * bytes_of(type)) == 0;
}

inline __device__ float half_word(unsigned word, int i, int type) {
  const unsigned short bits = (unsigned short)(word >> 16 * i);
  return type == kBF16 ? __uint_as_float(unsigned(bits) << 16) : __half2float(__ushort_as_half(bits));
}

// Elements [i, i + count) of a row of at least i + count, count at most 8; what is beyond is 0. `vector`: the row begins
// at an aligned address and its length is a multiple of 8.
inline __device__ void load8(const void* base, long long i, int count, int type, bool vector, float out[kVector]) {
  if (!vector || count < kVector) {
    for (int e = 0; e < kVector; ++e) out[e] = e < count ? load(base, i + e, type) : 0.0f;
    return;
  }
  const void* p = element(base, i, type);
  if (type == kF32) {
    const float4 a = static_cast<const float4*>(p)[0], b = static_cast<const float4*>(p)[1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
  } else if (type == kF8) {
    const uint2 words = *static_cast<const uint2*>(p);
    for (int e = 0; e < 4; ++e) {
      out[e] = float_of_f8(words.x >> 8 * e & 0xff);
      out[4 + e] = float_of_f8(words.y >> 8 * e & 0xff);
    }
  } else {
    const uint4 words = *static_cast<const uint4*>(p);
    for (int e = 0; e < 2; ++e) {
      out[e] = half_word(words.x, e, type), out[2 + e] = half_word(words.y, e, type);
      out[4 + e] = half_word(words.z, e, type), out[6 + e] = half_word(words.w, e, type);
    }
  }
}

// Of all lanes, the same in each; in one order.
inline __device__ float warp_sum(float v) {
  for (int step = kWarp / 2; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

inline __device__ float warp_max(float v) {
  for (int step = kWarp / 2; step; step /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
  return v;
}

}  // namespace pss::cuda
