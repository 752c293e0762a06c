"""Writing new keys and values into the paged KV cache, as they are or turned by their positions first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops.contract import CACHES, FLOATS, misfit, needs_gradient, rows_contiguous
from pss_engine.ops.dispatch import REFERENCE, Impl, Op
from pss_engine.ops.transformer import apply_rope

FLOAT8_MAX = torch.finfo(torch.float8_e4m3fn).max


def _store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, kv_rows: Tensor) -> None:
    """``cache[kv_rows[t]] = k[t], v[t]``.

    Args:
        k, v: [T, K, D]; the heads of a token contiguous, any stride between tokens.
        k_cache, v_cache: [num_blocks, P, K, D] contiguous; in float8_e4m3fn what is beyond 448 becomes 448. ``cpp``
            has no float8.
        kv_rows: [T] int64 = block * P + offset in the block; no row twice, but for equal keys and values. On CUDA it
            is not read back: on ``triton`` a token whose row is out of range is left out.

    Raises:
        ConfigError: a shape, dtype, stride or device outside this contract; on the CPU a row out of range too.
    """
    num_rows = k_cache.shape[0] * k_cache.shape[1]
    if k.device.type == "cpu" and (outside := ((kv_rows < 0) | (kv_rows >= num_rows)).nonzero()).numel():
        index = int(outside[0])
        raise ConfigError(f"store_kv: kv_rows[{index}] = {int(kv_rows[index])}, must be 0 to {num_rows - 1}")
    for new, cache in ((k, k_cache), (v, v_cache)):
        if cache.dtype == torch.float8_e4m3fn:  # torch cannot index it; its bytes can be
            new = new.float().clamp(-FLOAT8_MAX, FLOAT8_MAX).to(cache.dtype).view(torch.uint8)
            cache = cache.view(torch.uint8)
        cache.view(-1, *cache.shape[2:])[kv_rows] = new.to(cache.dtype)


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
        or k_cache.dtype not in CACHES
        or v.dtype != k.dtype
        or v_cache.dtype != k_cache.dtype
        or kv_rows.dtype != torch.int64
    ):
        expected = (
            "k and v, and the caches, alike in float32, bfloat16 or float16, the caches in float8_e4m3fn too; int64"
        )
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
    Impl("cuda", "pss_engine.ops.cuda:store_kv", devices=("cuda",)),
    check=_check_store_kv,
)


def turn_then_store(turn: Callable[..., Tensor], store: Callable[..., None]) -> Callable[..., Tensor]:
    """``rope_store_kv`` as one call of a backend's ``apply_rope`` and one of its ``store_kv``."""

    def run(heads: Tensor, cos: Tensor, sin: Tensor, k_cache: Tensor, v_cache: Tensor, kv_rows: Tensor) -> Tensor:
        num_kv_heads = k_cache.shape[2]
        num_heads = heads.shape[1] - 2 * num_kv_heads
        qk, v = heads.split([num_heads + num_kv_heads, num_kv_heads], dim=1)
        q, k = turn(qk, cos, sin).split([num_heads, num_kv_heads], dim=1)
        store(k, v, k_cache, v_cache, kv_rows)
        return q

    return run


def _rope_store_kv(
    heads: Tensor, cos: Tensor, sin: Tensor, k_cache: Tensor, v_cache: Tensor, kv_rows: Tensor
) -> Tensor:
    """``apply_rope`` to the queries and keys of a fused projection, ``store_kv`` of the keys and values.

    Args:
        heads: [T, N + 2 K, D]: query, key and value heads of each token, contiguous; any stride between tokens.
        cos, sin: [T, at most D / 2] float32, as in ``apply_rope``.
        k_cache, v_cache, kv_rows: as in ``store_kv``.

    Returns:
        The turned queries [T, N, D] in the dtype of heads; the heads of a token contiguous.

    Raises:
        ConfigError: what ``apply_rope`` and ``store_kv`` raise.
    """
    q: Tensor = turn_then_store(apply_rope.using(REFERENCE), _store_kv)(heads, cos, sin, k_cache, v_cache, kv_rows)
    return q


def _check_rope_store_kv(
    heads: Tensor, cos: Tensor, sin: Tensor, k_cache: Tensor, v_cache: Tensor, kv_rows: Tensor
) -> None:
    if k_cache.dim() != 4 or heads.dim() != 3 or heads.shape[1] <= 2 * k_cache.shape[2]:
        shapes = {"heads": list(heads.shape), "k_cache": list(k_cache.shape)}
        raise misfit("rope_store_kv", "shapes", shapes, "[T, N + 2 K, D], [blocks, P, K, D]")
    num_kv_heads = k_cache.shape[2]
    apply_rope.check(heads, cos, sin)
    _check_store_kv(heads[:, -2 * num_kv_heads : -num_kv_heads], heads[:, -num_kv_heads:], k_cache, v_cache, kv_rows)


rope_store_kv = Op(
    "rope_store_kv",
    _rope_store_kv,
    Impl("cpp", "pss_engine.ops.cpp:rope_store_kv", devices=("cpu",)),
    Impl("triton", "pss_engine.kernels.apply_rope:rope_store_kv", devices=("cuda",)),
    Impl("cuda", "pss_engine.ops.cuda:rope_store_kv", devices=("cuda",)),
    check=_check_rope_store_kv,
)
