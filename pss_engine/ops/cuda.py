"""The CUDA C++ kernels of ``pss_engine._C``: the path of Jetson and of any machine without Triton."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pss_engine.errors import BackendUnavailable, ConfigError
from pss_engine.ops.dispatch import REFERENCE
from pss_engine.ops.extension import DTYPES, build_info, load_extension
from pss_engine.ops.gpu_search import by_candidates
from pss_engine.ops.kv_cache import turn_then_store
from pss_engine.ops.lora import each_slice
from pss_engine.ops.transformer import apply_rope

_DTYPES = {**DTYPES, torch.float8_e4m3fn: 3, torch.int8: 4}
ENOUGH_BLOCKS = 1024
"""Blocks that fill any GPU without cutting contexts in parts."""
MAX_WORKSPACE_BYTES = 64 << 20


def _load() -> Any:
    extension = load_extension()
    if not extension.with_cuda():
        reason = build_info().get("cuda_error") or "it was built without"
        raise BackendUnavailable(f"pss_engine._C has no CUDA part: {reason}")
    if reason := extension.cuda.why_not():
        targets = ", ".join(f"sm_{arch}" for arch in build_info().get("cuda_archs", []))
        raise BackendUnavailable(f"the CUDA part, made for {targets}, cannot run: {reason}")
    return extension.cuda


_cuda = _load()


def _stream(tensor: Tensor) -> int:
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def lora_bgmv(
    y: Tensor, x: Tensor, lora_a: Tensor, lora_b: Tensor, scaling: Tensor, ranks: Tensor, slot_ids: Tensor
) -> None:
    num_slots, max_rank, in_features = lora_a.shape
    low = torch.empty(y.size(0), max_rank, dtype=torch.float32, device=y.device)
    with torch.cuda.device_of(y):
        _cuda.lora_bgmv(
            y.data_ptr(),
            x.data_ptr(),
            lora_a.data_ptr(),
            lora_b.data_ptr(),
            scaling.data_ptr(),
            ranks.data_ptr(),
            slot_ids.data_ptr(),
            low.data_ptr(),
            y.size(0),
            num_slots,
            max_rank,
            in_features,
            y.size(1),
            y.stride(0),
            x.stride(0),
            lora_a.stride(0),
            lora_b.stride(0),
            _DTYPES[y.dtype],
            _DTYPES[lora_a.dtype],
            _stream(y),
        )


lora_slices = each_slice(lora_bgmv)


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, kv_rows: Tensor) -> None:
    num_tokens, num_heads, head_dim = k.shape
    with torch.cuda.device_of(k):
        _cuda.store_kv(
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            kv_rows.data_ptr(),
            num_tokens,
            k_cache.size(0) * k_cache.size(1),
            num_heads * head_dim,
            k.stride(0),
            v.stride(0),
            _DTYPES[k.dtype],
            _DTYPES[k_cache.dtype],
            _stream(k),
        )


rope_store_kv = turn_then_store(apply_rope.using(REFERENCE), store_kv)


def num_parts(num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, max_context: int) -> int:
    """Blocks that share a context, from shapes alone; 1 where there are enough without, or partial sums too many."""
    parts = -(-max_context // int(_cuda.PART))
    fits = parts * num_tokens * num_heads * (head_dim + 2) * 4 <= MAX_WORKSPACE_BYTES
    return parts if fits and num_tokens * num_kv_heads < ENOUGH_BLOCKS else 1


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    (num_tokens, num_heads, head_dim), (num_rows, max_blocks) = q.shape, block_tables.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    if head_dim > _cuda.MAX_HEAD_DIM or num_heads // num_kv_heads > _cuda.MAX_GROUP:
        raise ConfigError(
            f"paged_attention: the cuda backend takes heads up to {_cuda.MAX_HEAD_DIM} in groups up to "
            f"{_cuda.MAX_GROUP}, found {head_dim} and {num_heads // num_kv_heads}; choices: triton, torch"
        )
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    parts = num_parts(num_tokens, num_heads, num_kv_heads, head_dim, max_blocks * block_size)
    lines = parts * num_tokens * num_heads if parts > 1 else 0
    workspace = torch.empty(lines * (head_dim + 2), dtype=torch.float32, device=q.device)
    mixed, peaks, totals = workspace.split([lines * head_dim, lines, lines])
    with torch.cuda.device_of(q):
        _cuda.paged_attention(
            out.data_ptr(),
            q.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            block_tables.data_ptr(),
            query_starts.data_ptr(),
            context_lens.data_ptr(),
            mixed.data_ptr(),
            peaks.data_ptr(),
            totals.data_ptr(),
            num_rows,
            num_tokens,
            max_blocks,
            block_size,
            num_heads,
            num_kv_heads,
            head_dim,
            parts,
            q.stride(0),
            window or 0,
            scale,
            _DTYPES[q.dtype],
            _DTYPES[k_cache.dtype],
            _stream(q),
        )
    return out


def _dense_candidates(
    queries: Tensor,
    vectors: Tensor,
    scales: Tensor | None,
    places: Tensor,
    masks: Tensor,
    mask_rows: Tensor,
    depth: int,
) -> Tensor:
    keys = _keys(len(queries), len(vectors), depth, vectors.device)
    with torch.cuda.device_of(vectors):
        _cuda.dense_candidates(
            keys.data_ptr(),
            places.data_ptr(),
            masks.data_ptr(),
            mask_rows.data_ptr(),
            queries.data_ptr(),
            vectors.data_ptr(),
            0 if scales is None else scales.data_ptr(),
            len(vectors),
            keys.shape[2],
            *queries.shape,
            _DTYPES[queries.dtype],
            _DTYPES[vectors.dtype],
            _stream(vectors),
        )
    return keys.flatten(1)


def _sparse_candidates(
    terms: Tensor,
    starts: Tensor,
    indptr: Tensor,
    passages: Tensor,
    weights: Tensor,
    places: Tensor,
    masks: Tensor,
    mask_rows: Tensor,
    depth: int,
) -> Tensor:
    keys = _keys(len(starts) - 1, len(places), depth, places.device)
    tensors = (keys, places, masks, mask_rows, terms, starts, indptr, passages, weights)
    with torch.cuda.device_of(places):
        _cuda.sparse_candidates(
            *(tensor.data_ptr() for tensor in tensors), len(places), keys.shape[2], len(starts) - 1, _stream(places)
        )
    return keys.flatten(1)


def _keys(num_queries: int, num_passages: int, depth: int, device: torch.device) -> Tensor:
    block = int(_cuda.SEARCH_BLOCK)
    return torch.empty(num_queries, -(-num_passages // block), min(depth, block), dtype=torch.int64, device=device)


retrieve_topk = by_candidates(_dense_candidates, _sparse_candidates)
