"""Copies of new keys and values into their rows of the paged cache; one program a token, nothing read on the host."""

import torch
import triton
import triton.language as tl

MAX_STEP = 1024  # features that one step of a program copies


@triton.jit
def store_kernel(
    k, v, k_cache, v_cache, kv_rows,
    k_stride, v_stride, features, num_rows,
    STEP: tl.constexpr,
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
        tl.store(k_cache + row * features + i, new_k.to(tl.float32).to(k_cache.dtype.element_ty), mask=inside)
        tl.store(v_cache + row * features + i, new_v.to(tl.float32).to(v_cache.dtype.element_ty), mask=inside)


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, kv_rows: torch.Tensor
) -> None:
    """cache[kv_rows[t]] = k[t], v[t]. A token whose row is outside the cache is left out."""
    num_tokens, num_kv_heads, head_dim = k.shape
    features = num_kv_heads * head_dim
    if 0 in (num_tokens, features):
        return
    with torch.cuda.device_of(k):
        store_kernel[(num_tokens,)](
            k, v, k_cache, v_cache, kv_rows,
            k.stride(0), v.stride(0), features, k_cache.shape[0] * k_cache.shape[1],
            STEP=min(MAX_STEP, triton.next_power_of_2(features)),
        )  # fmt: skip
