"""float8_e4m3fn as bytes: integer arithmetic that every GPU has, where conversions of its own begin with sm_89."""

import triton
import triton.language as tl

MAX = 448.0


@triton.jit
def decoded(bits):
    """The float32 values of uint8 bits; exact. The two NaN patterns, which encoded() writes for NaN, stay NaN."""
    b = bits.to(tl.uint16)
    half = ((b & 0x80) << 8) | ((b & 0x7F) << 7)
    value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((b & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def encoded(value):
    """uint8 bits of float32 values: to the nearest, ties to even; what is beyond 448 becomes 448."""
    bits = value.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1) - (120 << 23)) >> 20
    # below 2^-6 the steps are of 2^-9: adding 2^14 leaves them, rounded, at the end of the mantissa
    small = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0x3C800000, small, normal)
    code = tl.where(magnitude >= 0x43E00000, 0x7E, code)
    code = tl.where(magnitude > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
