"""Writing new keys and values into the paged KV cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops.contract import FLOATS, misfit, needs_gradient, rows_contiguous
from pss_engine.ops.dispatch import Impl, Op


def _store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, kv_rows: Tensor) -> None:
    """``cache[kv_rows[t]] = k[t], v[t]``.

    Args:
        k, v: [T, K, D]; the heads of a token contiguous, any stride between tokens.
        k_cache, v_cache: [num_blocks, P, K, D] contiguous.
        kv_rows: [T] int64 = block * P + offset in the block; no row twice, but for equal keys and values. On CUDA it
            is not read back: on ``triton`` a token whose row is out of range is left out.

    Raises:
        ConfigError: a shape, dtype, stride or device outside this contract; on the CPU a row out of range too.
    """
    num_rows = k_cache.shape[0] * k_cache.shape[1]
    if k.device.type == "cpu" and (outside := ((kv_rows < 0) | (kv_rows >= num_rows)).nonzero()).numel():
        index = int(outside[0])
        raise ConfigError(f"store_kv: kv_rows[{index}] = {int(kv_rows[index])}, must be 0 to {num_rows - 1}")
    k_cache.view(-1, *k_cache.shape[2:])[kv_rows] = k.to(k_cache.dtype)
    v_cache.view(-1, *v_cache.shape[2:])[kv_rows] = v.to(v_cache.dtype)


def _check_store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, kv_rows: Tensor) -> None:
    # Runs once a layer and step: attribute reads only; the text of an error is made when there is one.
    shape, cache_shape = k.shape, k_cache.shape
    if (
        len(shape) != 3
        or v.shape != shape
        or len(cache_shape) != 4
        or cache_shape[2:] != shape[1:]
        or v_cache.shape != cache_shape
        or kv_rows.shape != shape[:1]
    ):
        expected = "[T, K, D], [T, K, D], [blocks, P, K, D], [blocks, P, K, D], [T]"
        raise misfit("store_kv", "shapes", _each(lambda t: list(t.shape), k, v, k_cache, v_cache, kv_rows), expected)
    if (
        k.dtype not in FLOATS
        or k_cache.dtype not in FLOATS
        or v.dtype != k.dtype
        or v_cache.dtype != k_cache.dtype
        or kv_rows.dtype != torch.int64
    ):
        expected = "k and v, and the caches, alike in float32, bfloat16 or float16; int64"
        raise misfit("store_kv", "dtypes", _each(lambda t: t.dtype, k, v, k_cache, v_cache, kv_rows), expected)
    if not (
        rows_contiguous(k)
        and rows_contiguous(v)
        and k_cache.is_contiguous()
        and v_cache.is_contiguous()
        and kv_rows.is_contiguous()
    ):
        expected = "contiguous heads of a token, caches and kv_rows"
        raise misfit("store_kv", "strides", _each(lambda t: t.stride(), k, v, k_cache, v_cache, kv_rows), expected)
    device = k.device
    if not (v.device == device == k_cache.device == v_cache.device == kv_rows.device):
        found = _each(lambda t: t.device, k, v, k_cache, v_cache, kv_rows)
        raise misfit("store_kv", "devices", found, "one device for all")
    if needs_gradient(k, v):
        raise ConfigError("store_kv: no gradient flows through the cache; call it under torch.no_grad()")


def _each(read: Callable[[Tensor], object], *tensors: Tensor) -> dict[str, object]:
    return dict(zip(("k", "v", "k_cache", "v_cache", "kv_rows"), map(read, tensors), strict=True))


store_kv = Op(
    "store_kv",
    _store_kv,
    Impl("cpp", "pss_engine.ops.cpp:store_kv", devices=("cpu",)),
    Impl("triton", "pss_engine.kernels.store_kv:store_kv", devices=("cuda",)),
    check=_check_store_kv,
)
