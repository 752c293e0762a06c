"""Attention of a serving step: store the new keys and values in their blocks, then look at the whole context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
        device: torch.device,
        scale: float,
        windows: Sequence[int | None],
    ) -> PagedAttention:
        """Rows with these tables run the tokens at positions [start, end) of these bounds."""
        lens = [end - start for start, end in bounds]
        block_tables = np.zeros((len(tables), max(len(table.blocks) for table in tables)), np.int32)
        for row, table in enumerate(tables):
            block_tables[row, : len(table.blocks)] = table.blocks
        rows = np.repeat(np.arange(len(lens)), lens)
        positions = np.concatenate([np.arange(start, end) for start, end in bounds])
        block_size = tables[0].block_size
        kv_rows = block_tables[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size
        starts = np.cumsum([0, *lens], dtype=np.int32)
        contexts = np.array([end for _, end in bounds], np.int32)

        def moved(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device)

        return cls(cache, moved(block_tables), moved(kv_rows), moved(starts), moved(contexts), scale, windows)

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
