"""Rotary positions: turned heads into a new tensor, or queries into one and keys and values straight into the cache."""

import torch
import triton
import triton.language as tl

from .float8 import encoded


@triton.jit
def turn(x, cos, sin, half, HEAD_DIM: tl.constexpr, FEATURES: tl.constexpr):
    """One head in float32: pairs (i, i + half) turned by the angle of the token, what lies past 2 * half as it is."""
    d = tl.arange(0, FEATURES)
    inside = d < HEAD_DIM
    pair = d < 2 * half
    i = tl.where(d < half, d, d - half)
    other = tl.where(d < half, d + half, d - half)
    value = tl.load(x + d, mask=inside, other=0.0).to(tl.float32)
    partner = tl.load(x + other, mask=inside & pair, other=0.0).to(tl.float32)
    c = tl.load(cos + i, mask=pair, other=1.0)
    s = tl.load(sin + i, mask=pair, other=0.0)
    return value * c + tl.where(d < half, -partner, partner) * s


@triton.jit
def rope_kernel(x, cos, sin, y, stride, num_heads, half, HEAD_DIM: tl.constexpr, FEATURES: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    value = turn(x + t * stride + head * HEAD_DIM, cos + t * half, sin + t * half, half, HEAD_DIM, FEATURES)
    d = tl.arange(0, FEATURES)
    tl.store(y + (t * num_heads + head) * HEAD_DIM + d, value.to(y.dtype.element_ty), mask=d < HEAD_DIM)


@triton.jit
def rope_store_kernel(
    heads, cos, sin, q, k_cache, v_cache, kv_rows,
    stride, num_heads, num_kv_heads, half, num_rows,
    HEAD_DIM: tl.constexpr, FEATURES: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, FEATURES)
    inside = d < HEAD_DIM
    source = heads + t * stride + head * HEAD_DIM
    if head < num_heads:
        value = turn(source, cos + t * half, sin + t * half, half, HEAD_DIM, FEATURES)
        tl.store(q + (t * num_heads + head) * HEAD_DIM + d, value.to(q.dtype.element_ty), mask=inside)
    else:
        row = tl.load(kv_rows + t)
        if (row >= 0) & (row < num_rows):
            if head < num_heads + num_kv_heads:
                key = turn(source, cos + t * half, sin + t * half, half, HEAD_DIM, FEATURES)
                key = key.to(heads.dtype.element_ty).to(tl.float32)  # rounded as apply_rope rounds it
                if FP8:
                    key = encoded(key)
                place = (row * num_kv_heads + head - num_heads) * HEAD_DIM + d
                tl.store(k_cache + place, key.to(k_cache.dtype.element_ty), mask=inside)
            else:
                value = tl.load(source + d, mask=inside, other=0.0).to(tl.float32)
                if FP8:
                    value = encoded(value)
                place = (row * num_kv_heads + head - num_heads - num_kv_heads) * HEAD_DIM + d
                tl.store(v_cache + place, value.to(v_cache.dtype.element_ty), mask=inside)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, N, D] turned by cos, sin [T, half] float32."""
    num_tokens, num_heads, head_dim = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        with torch.cuda.device_of(x):
            rope_kernel[(num_tokens, num_heads)](
                x, cos, sin, y, x.stride(0), num_heads, cos.shape[1],
                HEAD_DIM=head_dim, FEATURES=triton.next_power_of_2(head_dim), num_warps=1,
            )  # fmt: skip
    return y


def rope_store_kv(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_rows: torch.Tensor,
) -> torch.Tensor:
    """heads [T, N + 2 K, D]: turned queries [T, N, D] are returned, turned keys and values go to their cache rows."""
    (num_tokens, all_heads, head_dim), num_kv_heads = heads.shape, k_cache.shape[2]
    num_heads = all_heads - 2 * num_kv_heads
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=heads.dtype, device=heads.device)
    fp8 = k_cache.dtype == torch.float8_e4m3fn
    if fp8:
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    if heads.numel():
        with torch.cuda.device_of(heads):
            rope_store_kernel[(num_tokens, all_heads)](
                heads, cos, sin, q, k_cache, v_cache, kv_rows,
                heads.stride(0), num_heads, num_kv_heads, cos.shape[1], k_cache.shape[0] * k_cache.shape[1],
                HEAD_DIM=head_dim, FEATURES=triton.next_power_of_2(head_dim), FP8=fp8, num_warps=1,
            )  # fmt: skip
    return q
