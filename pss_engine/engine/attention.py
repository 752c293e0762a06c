"""Attention of a serving step: store the new keys and values in their blocks, then look at the whole context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from pss_engine.kv import BlockTable, KVCache
from pss_engine.ops.attention import paged_attention
from pss_engine.ops.kv_cache import rope_store_kv


class StepRows:
    """Where the new tokens of a step's rows stand, whatever the layer group: row b runs positions ``bounds[b]``.

    Attributes:
        positions: [T] int64, each token's in its own sequence.
        query_starts, context_lens: [B + 1], [B] int32, where each row's new tokens begin, and all of its tokens.
    """

    def __init__(self, bounds: Sequence[tuple[int, int]], device: torch.device) -> None:
        """``bounds``: [start, end) of each row."""
        lens = [end - start for start, end in bounds]
        self._device = device
        self._rows = np.repeat(np.arange(len(lens)), lens)
        self._positions = np.array([at for start, end in bounds for at in range(start, end)], np.int64)
        self.positions = self.moved(self._positions)
        self.query_starts = self.moved(np.array([0, *accumulate(lens)], np.int32))
        self.context_lens = self.moved(np.array([end for _, end in bounds], np.int32))

    def places(self, block_tables: np.ndarray, block_size: int) -> np.ndarray:
        """[T] int64: in a cache of such blocks, the row of each token. block_tables [B, M] int32."""
        blocks = block_tables[self._rows, self._positions // block_size]
        return blocks.astype(np.int64) * block_size + self._positions % block_size

    def moved(self, values: np.ndarray) -> Tensor:
        """On the device that runs the step."""
        return torch.from_numpy(values).to(self._device)


@dataclass(frozen=True)
class PagedAttention:
    """The paged :class:`~pss_engine.models.Attention` of one step, in the layers of one group.

    Attributes:
        block_tables: [B, M] int32, the blocks of each row in order; shorter rows end in zeros.
        kv_rows: [T] int64, block * block_size + offset of each new token.
        query_starts, context_lens: [B + 1], [B] int32, see :class:`StepRows`.
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
        rows: StepRows,
        scale: float,
        windows: Sequence[int | None],
    ) -> PagedAttention:
        """Of rows that have these tables."""
        block_tables = np.zeros((len(tables), max(len(table.blocks) for table in tables)), np.int32)
        for row, table in enumerate(tables):
            block_tables[row, : len(table.blocks)] = table.blocks
        kv_rows = rows.moved(rows.places(block_tables, tables[0].block_size))
        return cls(cache, rows.moved(block_tables), kv_rows, rows.query_starts, rows.context_lens, scale, windows)

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
