"""Causal attention: over packed segments (writing a state) and over a paged KV cache (serving)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, kv_rows: Tensor) -> None:
    """``cache[kv_rows[t]] = k[t], v[t]``.

    k, v [T, K, D]; caches [num_blocks, P, K, D]; kv_rows [T] int64 = block * P + offset in the block.
    """
    k_cache.view(-1, *k_cache.shape[2:])[kv_rows] = k.to(k_cache.dtype)
    v_cache.view(-1, *v_cache.shape[2:])[kv_rows] = v.to(v_cache.dtype)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Sequence[Tensor],
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attention of each row's new tokens over its whole context, causal.

    Query i of a row with n new tokens and context c (new tokens included, already stored) sits at position c - n + i
    and sees the positions up to its own, the last ``window`` of them where a window is set.

    q [T, N, D] packed over the B rows; caches [num_blocks, P, K, D]; block_tables: for each row its blocks in order,
    int64; query_lens, context_lens: B integers in tokens. Returns [T, N, D]. A row's result depends on that row alone.
    """
    out = torch.empty_like(q)
    start = 0
    for table, query_len, context_len in zip(block_tables, query_lens, context_lens, strict=True):
        # blocks that lie wholly before the oldest visible position are not read
        first_block = max(0, context_len - query_len - window + 1) // k_cache.shape[1] if window else 0
        first = first_block * k_cache.shape[1]
        k = k_cache[table[first_block:]].flatten(0, 1)[: context_len - first].to(q.dtype)
        v = v_cache[table[first_block:]].flatten(0, 1)[: context_len - first].to(q.dtype)
        rows = slice(start, start + query_len)
        out[rows] = _attend(q[rows], k, v, scale, window)
        start += query_len
    return out


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
