"""The inputs of one forward. They travel as an argument; no layer looks anything up elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pss_engine.ops.attention import dense_attention


class Attention(Protocol):
    """How the tokens of a batch see each other: through a paged cache, or as plain segments."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, N, D], k and v [T, K, D] of decoder layer ``layer``; returns [T, N, D]."""


class Adapters(Protocol):
    """What the states of a batch add to a linear of a session layer."""

    def __call__(self, layer: int, linear: str, x: Tensor, y: Tensor) -> Tensor:
        """x [T, H_in], y [T, H_out] = base output of ``linear``; returns y with each row's own state added."""


@dataclass(frozen=True)
class ForwardBatch:
    """T packed tokens of B rows.

    Attributes:
        token_ids: [T] int64.
        positions: [T] int64, position of each token in its own sequence.
        attention: see :class:`Attention`.
        adapters: see :class:`Adapters`; None where no row has a state.
        logit_rows: [R] int64, the tokens whose logits are wanted.
    """

    token_ids: Tensor
    positions: Tensor
    attention: Attention
    adapters: Adapters | None
    logit_rows: Tensor


@dataclass(frozen=True)
class DenseAttention:
    """Causal attention inside packed segments, without a cache: for writing states and for checks."""

    segment_lens: Sequence[int]
    scale: float
    windows: Sequence[int | None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense_attention(q, k, v, self.segment_lens, self.scale, self.windows[layer])
