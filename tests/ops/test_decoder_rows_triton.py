"""The Triton kernels of the small ops of a layer, under the interpreter: the reference, within a rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pss_engine.ops import add_rms_norm, apply_rope, rms_norm, rope_store_kv, silu_mul

pytestmark = pytest.mark.usefixtures("interpreted")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


@each_dtype
@pytest.mark.parametrize("size", [1, 33, 576, 4100])
def test_rms_norm(dtype: torch.dtype, size: int) -> None:
    x, weight = randn(3, size + 5).to(dtype)[:, :size], (randn(size) + 2).to(dtype)
    assert_close(rms_norm(x, weight, 1e-5, backend="triton"), rms_norm(x, weight, 1e-5, backend="torch"))


@each_dtype
@pytest.mark.parametrize("size", [33, 4100])
def test_add_rms_norm_keeps_the_rounded_sum(dtype: torch.dtype, size: int) -> None:
    x, residual = randn(3, size).to(dtype), randn(4, size + 1).to(dtype)[1:, :size]
    weight = (randn(size) + 2).to(dtype)
    y, total = add_rms_norm(x, residual, weight, 1e-5, backend="triton")
    assert torch.equal(total, x + residual)
    assert_close(y, rms_norm(x + residual, weight, 1e-5, backend="torch"))


@each_dtype
@pytest.mark.parametrize("size", [1, 70, 1100])
def test_silu_mul(dtype: torch.dtype, size: int) -> None:
    x = (randn(3, 2 * size) * 3).to(dtype)
    assert_close(silu_mul(x, backend="triton"), silu_mul(x, backend="torch"))


@each_dtype
@pytest.mark.parametrize(("half", "head_dim"), [(4, 11), (8, 16), (40, 80), (48, 96)])
def test_apply_rope(dtype: torch.dtype, half: int, head_dim: int) -> None:
    x, turned = randn(3, 4, head_dim).to(dtype)[:, :3], randn(3, half) * 10
    cos, sin = turned.cos(), turned.sin()
    # the reference rounds the angles too
    wide = apply_rope(x.float(), cos, sin, backend="torch").to(dtype)
    assert_close(apply_rope(x, cos, sin, backend="triton"), wide)


@each_dtype
@pytest.mark.parametrize("cache_dtype", [*DTYPES, torch.float8_e4m3fn], ids=str)
def test_rope_store_kv_turns_queries_and_keys_and_stores(dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    heads, turned = randn(4, 8, 12).to(dtype), randn(4, 5)
    cos, sin = turned.cos(), turned.sin()
    caches = [torch.full((3, 4, 2, 12), 7.0).to(cache_dtype) for _ in range(2)]
    rows = torch.tensor([5, 0, 11, 3])
    q = rope_store_kv(heads, cos, sin, *caches, rows, backend="triton")
    expected = apply_rope(heads[:, :6], cos, sin, backend="triton")
    assert torch.equal(q, expected[:, :4])
    limit = torch.finfo(torch.float8_e4m3fn).max
    for cache, new in zip(caches, (expected[:, 4:], heads[:, 6:]), strict=True):
        stored = cache.float().view(12, 2, 12)
        assert torch.equal(stored[rows], new.float().clamp(-limit, limit).to(cache_dtype).float())
        assert (stored[[1, 2, 4, 6, 7, 8, 9, 10]] == 7).all()
