"""The inputs of one forward. They travel as an argument; no layer looks anything up elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pss_engine.models.config import ModelConfig
from pss_engine.ops.attention import dense_attention
from pss_engine.ops.transformer import apply_rope


class Attention(Protocol):
    """How the tokens of a batch see each other: through a paged cache, or as plain segments."""

    def __call__(self, layer: int, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """heads [T, N + 2 K, D]: queries, keys and values of decoder layer ``layer``, not yet turned by positions; cos,
        sin [T, D_rotary / 2] float32. Returns [T, N, D]."""


class Adapters(Protocol):
    """What the states of a batch add to a linear of a session layer."""

    def __call__(self, layer: int, linear: str, x: Tensor, y: Tensor) -> Tensor:
        """x [T, H_in], y [T, H_out] = base output of ``linear``; returns y with each row's own state added."""


@dataclass(frozen=True)
class ForwardBatch:
    """T packed tokens of B rows.

    Attributes:
        token_ids: [T] int64; read below the cut only.
        positions: [T] int64, position of each token in its own sequence.
        attention: see :class:`Attention`.
        adapters: see :class:`Adapters`; None where no row has a state.
        logit_rows: [R] int64, the tokens whose logits are wanted; read above the cut only.
    """

    token_ids: Tensor
    positions: Tensor
    attention: Attention
    adapters: Adapters | None
    logit_rows: Tensor


@dataclass(frozen=True)
class DenseAttention:
    """Causal attention inside packed segments, without a cache: for writing states and for checks."""

    config: ModelConfig
    segment_lens: Sequence[int]

    def __call__(self, layer: int, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        config = self.config
        qk, v = heads.split([config.num_heads + config.num_kv_heads, config.num_kv_heads], dim=1)
        q, k = apply_rope(qk, cos, sin).split([config.num_heads, config.num_kv_heads], dim=1)
        return dense_attention(q, k, v, self.segment_lens, config.head_dim**-0.5, config.windows[layer])
