"""The memory itself: keys and values of every layer in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.kv.geometry import KVGeometry


class KVCache:
    """Layer l has ``k[l]`` and ``v[l]`` [num_blocks, P, K, D]; which block is whose, :class:`KVMemory` knows."""

    def __init__(self, geometry: KVGeometry, num_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (num_blocks, geometry.block_size, geometry.num_kv_heads, geometry.head_dim)
        layers = range(sum(geometry.num_layers.values()))
        self.k: list[Tensor] = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]
        self.v: list[Tensor] = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]
