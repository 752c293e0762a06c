"""Attention of a serving step: store the new keys and values in their blocks, then look at the whole context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pss_engine.engine.scheduler import Chunk
from pss_engine.kv import GROUPS, SESSION, SHARED, KVCache
from pss_engine.ops.attention import paged_attention, store_kv


@dataclass(frozen=True)
class GroupRows:
    """Where a batch lies in the cache of one layer group.

    Attributes:
        block_tables: per row, its blocks in order, int64.
        kv_rows: [T] int64, block * block_size + offset of each new token.
    """

    block_tables: list[Tensor]
    kv_rows: Tensor


@dataclass(frozen=True)
class PagedAttention:
    """The paged :class:`~pss_engine.models.Attention` of one step."""

    cache: KVCache
    num_shared_layers: int
    groups: dict[str, GroupRows]
    query_lens: Sequence[int]
    context_lens: Sequence[int]
    scale: float
    windows: Sequence[int | None]

    @classmethod
    def of(
        cls,
        chunks: Sequence[Chunk],
        positions: Tensor,
        cache: KVCache,
        num_shared_layers: int,
        scale: float,
        windows: Sequence[int | None],
    ) -> PagedAttention:
        query_lens = [chunk.num_tokens for chunk in chunks]
        context_lens = [chunk.sequence.num_stored + chunk.num_tokens for chunk in chunks]
        groups = {group: _rows(group, chunks, positions) for group in GROUPS}
        return cls(cache, num_shared_layers, groups, query_lens, context_lens, scale, windows)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = self.groups[SHARED if layer < self.num_shared_layers else SESSION]
        k_cache, v_cache = self.cache.k[layer], self.cache.v[layer]
        store_kv(k, v, k_cache, v_cache, rows.kv_rows)
        return paged_attention(
            q, k_cache, v_cache, rows.block_tables, self.query_lens, self.context_lens, self.scale, self.windows[layer]
        )


def _rows(group: str, chunks: Sequence[Chunk], positions: Tensor) -> GroupRows:
    tables = [chunk.sequence.kv.tables[group] for chunk in chunks]
    block_size = tables[0].block_size
    block_tables = [torch.tensor(table.blocks, device=positions.device) for table in tables]
    by_row = positions.split([chunk.num_tokens for chunk in chunks])
    kv_rows = [t[at // block_size] * block_size + at % block_size for t, at in zip(block_tables, by_row, strict=True)]
    return GroupRows(block_tables, torch.cat(kv_rows))
