"""Attention of a serving step: store the new keys and values in their blocks, then look at the whole context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from pss_engine.kv import BlockTable, KVCache
from pss_engine.ops.attention import paged_attention
from pss_engine.ops.kv_cache import rope_store_kv


@dataclass(frozen=True)
class PagedAttention:
    """The paged :class:`~pss_engine.models.Attention` of one step, in the layers of one group.

    Attributes:
        block_tables: [B, M] int32, the blocks of each row in order; shorter rows end in zeros.
        kv_rows: [T] int64, block * block_size + offset of each new token.
        query_starts, context_lens: [B + 1], [B] int32, where each row's new tokens begin, and all of its tokens.
    """

    cache: KVCache
    block_tables: Tensor
    kv_rows: Tensor
    query_starts: Tensor
    context_lens: Tensor
    scale: float
    windows: Sequence[int | None]

    @classmethod
    def of(
        cls,
        cache: KVCache,
        tables: Sequence[BlockTable],
        bounds: Sequence[tuple[int, int]],
        positions: Tensor,
        scale: float,
        windows: Sequence[int | None],
    ) -> PagedAttention:
        """Rows with these tables run the tokens of these bounds [start, end), at ``positions`` [T]."""

        def int32(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=positions.device)

        lens = [end - start for start, end in bounds]
        longest = max(len(table.blocks) for table in tables)
        block_tables = int32([table.blocks + [0] * (longest - len(table.blocks)) for table in tables])
        rows = int32([row for row, count in enumerate(lens) for _ in range(count)])
        block_size = tables[0].block_size
        kv_rows = block_tables[rows, positions // block_size].long() * block_size + positions % block_size
        starts, contexts = int32([0, *accumulate(lens)]), int32([end for _, end in bounds])
        return cls(cache, block_tables, kv_rows, starts, contexts, scale, windows)

    def __call__(self, layer: int, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        k_cache, v_cache = self.cache.k[layer], self.cache.v[layer]
        out: Tensor = paged_attention(
            rope_store_kv(heads, cos, sin, k_cache, v_cache, self.kv_rows),
            k_cache,
            v_cache,
            self.block_tables,
            self.query_starts,
            self.context_lens,
            self.scale,
            self.windows[layer],
        )
        return out
