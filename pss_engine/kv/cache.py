"""The memory itself: keys and values of every layer in blocks, and the hidden state at the cut beside them."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.kv.geometry import KVGeometry


class KVCache:
    """Layer l has ``k[l]`` and ``v[l]`` [num_blocks, P, K, D]; which block is whose, :class:`KVMemory` knows.

    ``hidden`` [num_blocks, P, H] belongs to the blocks of the shared layers: with it, a prefix that is known below the
    cut needs the session layers only.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        num_blocks: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        hidden_dtype: torch.dtype | None = None,
    ) -> None:
        """``dtype`` of keys and values; ``hidden_dtype`` of the hidden state, the same where it is not given."""
        shape = (num_blocks, geometry.block_size, geometry.num_kv_heads, geometry.head_dim)
        layers = range(sum(geometry.num_layers.values()))
        self.k: list[Tensor] = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]
        self.v: list[Tensor] = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]
        self.hidden = torch.empty(
            num_blocks, geometry.block_size, hidden_size, dtype=hidden_dtype or dtype, device=device
        )
