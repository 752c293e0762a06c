"""The ops of ``pss_engine._C``: tensors become addresses, sizes and strides."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops.extension import DTYPES, FACTOR_TYPES, NO_WINDOW, load_extension
from pss_engine.ops.kv_cache import turn_then_store
from pss_engine.ops.lora import each_slice
from pss_engine.ops.packed_weight import FORMATS, PackedWeight
from pss_engine.ops.search import DenseSearch, Retrieved, SparseSearch

_C = load_extension()


def lora_bgmv(
    y: Tensor, x: Tensor, lora_a: Tensor, lora_b: Tensor, scaling: Tensor, ranks: Tensor, slot_ids: Tensor
) -> None:
    num_slots, max_rank, in_features = lora_a.shape
    try:
        _C.lora_bgmv(
            y.data_ptr(),
            x.data_ptr(),
            lora_a.data_ptr(),
            lora_b.data_ptr(),
            scaling.data_ptr(),
            ranks.data_ptr(),
            slot_ids.data_ptr(),
            y.size(0),
            num_slots,
            max_rank,
            in_features,
            y.size(1),
            y.stride(0),
            x.stride(0),
            lora_a.stride(0),
            lora_b.stride(0),
            DTYPES[y.dtype],
            FACTOR_TYPES[lora_a.dtype],
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


lora_slices = each_slice(lora_bgmv)


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None, int8_rows: bool = False) -> Tensor:
    num_rows, in_features = x.shape
    y = x.new_empty(num_rows, weight.out_features)
    _C.linear(
        y.data_ptr(),
        x.data_ptr(),
        weight.panels.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        num_rows,
        in_features,
        weight.out_features,
        weight.out_features,
        x.stride(0),
        FORMATS.index(weight.format),
        int8_rows,
    )
    return y


def gather_rows(ids: Tensor, weight: PackedWeight) -> Tensor:
    y = torch.empty(len(ids), weight.in_features)
    try:
        _C.gather_rows(
            y.data_ptr(),
            ids.data_ptr(),
            weight.panels.data_ptr(),
            len(ids),
            weight.in_features,
            weight.out_features,
            FORMATS.index(weight.format),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return y


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, kv_rows: Tensor) -> None:
    num_tokens, num_heads, head_dim = k.shape
    try:
        _C.store_kv(
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
            DTYPES[k.dtype],
            _cache_type("store_kv", k_cache),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


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
    num_tokens, num_heads, head_dim = q.shape
    num_rows, max_blocks = block_tables.shape
    num_blocks, block_size, num_kv_heads, _ = k_cache.shape
    out = q.new_empty(num_tokens, num_heads, head_dim)
    try:
        _C.paged_attention(
            out.data_ptr(),
            q.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            block_tables.data_ptr(),
            query_starts.data_ptr(),
            context_lens.data_ptr(),
            num_rows,
            num_tokens,
            max_blocks,
            num_blocks,
            block_size,
            num_heads,
            num_kv_heads,
            head_dim,
            num_heads * head_dim,
            q.stride(0),
            window or NO_WINDOW,
            scale,
            DTYPES[q.dtype],
            _cache_type("paged_attention", k_cache),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    num_rows, size = x.shape
    y = x.new_empty(num_rows, size)
    _C.rms_norm(y.data_ptr(), x.data_ptr(), weight.data_ptr(), num_rows, size, x.stride(0), eps, DTYPES[x.dtype])
    return y


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    num_rows, num_heads, head_dim = x.shape
    y = x.new_empty(num_rows, num_heads, head_dim)
    _C.apply_rope(
        y.data_ptr(),
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        num_rows,
        num_heads,
        head_dim,
        cos.size(1),
        x.stride(0),
        DTYPES[x.dtype],
    )
    return y


rope_store_kv = turn_then_store(apply_rope, store_kv)


def silu_mul(gate_up: Tensor) -> Tensor:
    num_rows, width = gate_up.shape
    y = gate_up.new_empty(num_rows, width // 2)
    _C.silu_mul(y.data_ptr(), gate_up.data_ptr(), num_rows, width // 2, gate_up.stride(0), DTYPES[gate_up.dtype])
    return y


def argmax(logits: Tensor) -> Tensor:
    num_rows, size = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64)
    _C.argmax(tokens.data_ptr(), logits.data_ptr(), num_rows, size, logits.stride(0), DTYPES[logits.dtype])
    return tokens


def retrieve_topk(
    ranks: Tensor,
    dense: DenseSearch | None,
    sparse: SparseSearch | None,
    groups: Tensor,
    shares: Tensor,
    masks: Tensor | None,
    mask_ids: Tensor,
    k: int,
) -> Retrieved:
    num_lists, depth = shares.shape
    found = Retrieved(
        torch.empty(len(mask_ids), k, dtype=torch.int32),
        torch.empty(len(mask_ids), k, dtype=torch.int64),
        torch.empty(num_lists, depth, dtype=torch.int32),
        torch.empty(num_lists, depth, dtype=torch.float32),
    )
    try:
        _C.retrieve_topk(
            *_dense_arguments(dense),
            *_sparse_arguments(sparse),
            ranks.data_ptr(),
            groups.data_ptr(),
            shares.data_ptr(),
            0 if masks is None else masks.data_ptr(),
            mask_ids.data_ptr(),
            len(ranks),
            0 if masks is None else len(masks),
            len(mask_ids),
            depth,
            k,
            *(tensor.data_ptr() for tensor in found),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return found


def _dense_arguments(dense: DenseSearch | None) -> tuple[int, ...]:
    if dense is None:
        return (0, 0, 0, 0, 0, 0)
    scales = 0 if dense.scales is None else dense.scales.data_ptr()
    kind = DTYPES.get(dense.vectors.dtype, -1)
    return (dense.queries.data_ptr(), dense.vectors.data_ptr(), scales, *dense.queries.shape, kind)


def _sparse_arguments(sparse: SparseSearch | None) -> tuple[int, ...]:
    if sparse is None:
        return (0,) * 9
    tensors = (sparse.terms, sparse.starts, sparse.indptr, sparse.passages, sparse.weights)
    sizes = (sparse.num_queries, len(sparse.indptr) - 1, len(sparse.terms), len(sparse.passages))
    return (*(tensor.data_ptr() for tensor in tensors), *sizes)


def _cache_type(op: str, cache: Tensor) -> int:
    if cache.dtype not in DTYPES:
        choices = ", ".join(map(str, DTYPES))
        raise ConfigError(f"{op}: the cpp backend has no caches in {cache.dtype}; choices: {choices}")
    return DTYPES[cache.dtype]


def advise_huge_pages(memory: Tensor) -> None:
    """Back a contiguous tensor that is not yet written with huge pages, if the system gives them."""
    _C.advise_huge_pages(memory.data_ptr(), memory.numel() * memory.element_size())
