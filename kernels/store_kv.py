"""Copies of new keys and values into their rows of the paged cache; one program a token, nothing read on the host."""

import torch
import triton
import triton.language as tl

from .float8 import encoded

MAX_STEP = 1024  # features that one step of a program copies


@triton.jit
def store_kernel(
    k, v, k_cache, v_cache, kv_rows,
    k_stride, v_stride, features, num_rows,
    STEP: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """cache[kv_rows[t]] = k[t], v[t]."""
    t = tl.program_id(0).to(tl.int64)
    row = tl.load(kv_rows + t)
    if (row < 0) | (row >= num_rows):
        return
    for start in range(0, features, STEP):
        i = start + tl.arange(0, STEP)
        inside = i < features
        new_k = tl.load(k + t * k_stride + i, mask=inside, other=0.0)
        new_v = tl.load(v + t * v_stride + i, mask=inside, other=0.0)
        # between two half types by way of float32, as torch does
        new_k, new_v = new_k.to(tl.float32), new_v.to(tl.float32)
        if FP8:
            new_k, new_v = encoded(new_k), encoded(new_v)
        tl.store(k_cache + row * features + i, new_k.to(k_cache.dtype.element_ty), mask=inside)
        tl.store(v_cache + row * features + i, new_v.to(v_cache.dtype.element_ty), mask=inside)


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, kv_rows: torch.Tensor
) -> None:
    """cache[kv_rows[t]] = k[t], v[t]. A token whose row is outside the cache is left out."""
    num_tokens, num_kv_heads, head_dim = k.shape
    features = num_kv_heads * head_dim
    if 0 in (num_tokens, features):
        return
    fp8 = k_cache.dtype == torch.float8_e4m3fn
    if fp8:
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    with torch.cuda.device_of(k):
        store_kernel[(num_tokens,)](
            k, v, k_cache, v_cache, kv_rows,
            k.stride(0), v.stride(0), features, k_cache.shape[0] * k_cache.shape[1],
            STEP=min(MAX_STEP, triton.next_power_of_2(features)), FP8=fp8,
        )  # fmt: skip
