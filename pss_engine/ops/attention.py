"""Causal attention: over packed segments (writing a state) and over a paged KV cache (serving)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.errors import ConfigError
from pss_engine.ops.contract import CACHES, FLOATS, misfit, needs_gradient, rows_contiguous
from pss_engine.ops.dispatch import Impl, Op


def _paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attention of each row's new tokens over its whole context, causal.

    Query i of a row with n new tokens and context c (new tokens included, already stored) sits at position c - n + i
    and sees the positions up to its own, the last ``window`` of them where a window is set. With its scores
    ``s_j = scale * q . k_j`` it gets ``sum_j exp(s_j) v_j / sum_j exp(s_j)``, in float32, rounded to q's dtype.

    On ``cpp`` and ``triton`` a token's bits depend on the token, its position and its context alone: not on the other
    rows, nor on how the context was cut into calls. The reference uses torch's attention, whose order of summation may
    change. Where q is bfloat16 or float16, ``triton`` rounds ``exp(s_j)`` to it before it is multiplied with ``v_j``,
    as tensor cores take it, and reads nothing back to the host: on CUDA wrong values go unnoticed.

    Args:
        q: [T, N, D] float32, bfloat16 or float16, packed over the B rows; the heads of a token contiguous.
        k_cache, v_cache: [num_blocks, P, K, D] contiguous, N a multiple of K; float8_e4m3fn too, but for ``cpp``.
        block_tables: [B, M] int32, the blocks of each row in order; what lies past its context is not read.
        query_starts: [B + 1] int32, row b has the tokens query_starts[b] to query_starts[b + 1] - 1 of q.
        context_lens: [B] int32, in tokens.
        window: tokens, at least 1.

    Returns:
        [T, N, D] in q's dtype, contiguous.

    Raises:
        ConfigError: a shape, dtype, stride or device outside this contract; on the CPU a start, a length or a block
            out of range too.
    """
    out = q.new_empty(q.shape)
    starts, contexts = query_starts.tolist(), context_lens.tolist()
    block_size = k_cache.shape[1]
    if q.device.type == "cpu":
        _check_rows(starts, contexts, q.shape[0], block_tables, block_size, k_cache.shape[0], window)
    for b, context_len in enumerate(contexts):
        rows = slice(starts[b], starts[b + 1])
        query_len = rows.stop - rows.start
        if query_len == 0:
            continue
        # blocks that lie wholly before the oldest visible position are not read
        first_block = max(0, context_len - query_len - window + 1) // block_size if window else 0
        table = block_tables[b, first_block : -(-context_len // block_size)].long()
        visible = context_len - first_block * block_size
        k = _blocks(k_cache, table).flatten(0, 1)[:visible].to(q.dtype)
        v = _blocks(v_cache, table).flatten(0, 1)[:visible].to(q.dtype)
        out[rows] = _attend(q[rows], k, v, scale, window)
    return out


def _blocks(cache: Tensor, table: Tensor) -> Tensor:
    if cache.dtype == torch.float8_e4m3fn:  # torch cannot index it; its bytes can be
        return cache.view(torch.uint8)[table].view(cache.dtype)
    return cache[table]


def _check_rows(
    starts: list[int],
    contexts: list[int],
    num_tokens: int,
    block_tables: Tensor,
    block_size: int,
    num_blocks: int,
    window: int | None,
) -> None:
    def refuse(name: str, index: int, value: int, expected: str) -> ConfigError:
        return ConfigError(f"paged_attention: {name}[{index}] = {value}, must be {expected}")

    max_context = block_tables.shape[1] * block_size
    if starts[0] != 0:
        raise refuse("query_starts", 0, starts[0], "0")
    for b, context in enumerate(contexts):
        num_new = starts[b + 1] - starts[b]
        if num_new < 0:
            raise refuse("query_starts", b + 1, starts[b + 1], f"at least {starts[b]}, the one before")
        if not num_new <= context <= max_context:
            raise refuse(
                "context_lens", b, context, f"{num_new} (the new tokens) to {max_context} (all blocks of the table)"
            )
        first = max(0, context - num_new - window + 1) // block_size if window else 0
        for i, block in enumerate(block_tables[b, first : -(-context // block_size)].tolist(), first):
            if num_new and not 0 <= block < num_blocks:
                raise refuse(f"block_tables[{b}]", i, block, f"0 to {num_blocks - 1}")
    if starts[-1] != num_tokens:
        raise refuse("query_starts", len(contexts), starts[-1], f"{num_tokens}, the tokens")


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, segment_lens: Sequence[int], scale: float, window: int | None = None
) -> Tensor:
    """Causal attention inside each packed segment; differentiable.

    q [T, N, D], k and v [T, K, D]; segment_lens sum to T. Returns [T, N, D].
    """
    parts = [t.split(list(segment_lens)) for t in (q, k, v)]
    return torch.cat([_attend(qs, ks, vs, scale, window) for qs, ks, vs in zip(*parts, strict=True)])


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """q [n, N, D] are the last n of the c positions of k, v [c, K, D]."""
    num_queries, num_keys = q.shape[0], k.shape[0]
    mask, causal = None, False
    if window is not None and num_keys > window:
        ahead = torch.arange(num_keys - num_queries, num_keys, device=q.device)[:, None]
        behind = torch.arange(num_keys, device=q.device)[None, :]
        mask = (behind <= ahead) & (behind > ahead - window)
    elif num_queries == num_keys:
        causal = num_queries > 1
    elif num_queries > 1:
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).tril(num_keys - num_queries)
    q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped)
    return out.squeeze(0).transpose(0, 1)


def _check_paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
) -> None:
    # Runs once a layer and step: attribute reads only; the text of an error is made when there is one.
    tensors = (q, k_cache, v_cache, block_tables, query_starts, context_lens)
    shape, cache_shape, table_shape = q.shape, k_cache.shape, block_tables.shape
    if (
        len(shape) != 3
        or len(cache_shape) != 4
        or v_cache.shape != cache_shape
        or cache_shape[3] != shape[2]
        or shape[1] % cache_shape[2]
        or len(table_shape) != 2
        or context_lens.shape != table_shape[:1]
        or query_starts.shape != (table_shape[0] + 1,)
    ):
        expected = "[T, N, D], [blocks, P, K, D], [blocks, P, K, D], [B, M], [B + 1], [B], N a multiple of K"
        raise misfit("paged_attention", "shapes", _each(lambda t: list(t.shape), tensors), expected)
    if (
        q.dtype not in FLOATS
        or k_cache.dtype not in CACHES
        or v_cache.dtype != k_cache.dtype
        or not (block_tables.dtype == query_starts.dtype == context_lens.dtype == torch.int32)
    ):
        expected = "float32, bfloat16 or float16; the caches alike in one of them or float8_e4m3fn; int32; int32; int32"
        raise misfit("paged_attention", "dtypes", _each(lambda t: t.dtype, tensors), expected)
    if not (
        rows_contiguous(q)
        and k_cache.is_contiguous()
        and v_cache.is_contiguous()
        and block_tables.is_contiguous()
        and query_starts.is_contiguous()
        and context_lens.is_contiguous()
    ):
        expected = "contiguous heads of a token of q, all else contiguous"
        raise misfit("paged_attention", "strides", _each(lambda t: t.stride(), tensors), expected)
    device = q.device
    if not (k_cache.device == device == v_cache.device) or not (
        block_tables.device == query_starts.device == context_lens.device == device
    ):
        raise misfit("paged_attention", "devices", _each(lambda t: t.device, tensors), "one device for all")
    if window is not None and window < 1:
        raise ConfigError(f"paged_attention: window {window} must be at least 1, or None")
    if needs_gradient(q):
        raise ConfigError("paged_attention: no gradient flows through the cache; call it under torch.no_grad()")


def _each(read: Callable[[Tensor], object], tensors: Sequence[Tensor]) -> dict[str, object]:
    names = ("q", "k_cache", "v_cache", "block_tables", "query_starts", "context_lens")
    return dict(zip(names, map(read, tensors), strict=True))


paged_attention = Op(
    "paged_attention",
    _paged_attention,
    Impl("cpp", "pss_engine.ops.cpp:paged_attention", devices=("cpu",)),
    Impl("triton", "pss_engine.kernels.paged_attention:paged_attention", devices=("cuda",)),
    Impl("cuda", "pss_engine.ops.cuda:paged_attention", devices=("cuda",)),
    Impl("flash_attn", "pss_engine.ops.flash:paged_attention", devices=("cuda",)),
    check=_check_paged_attention,
)
