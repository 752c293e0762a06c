"""StateLayout: how one state lies in memory, one contiguous row in the order the LoRA kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from pss_engine.errors import ConfigError
from pss_engine.state.session_state import SessionState
from pss_engine.state.shape import StateShape, TargetKey
from pss_engine.state.verify import check_topology

_ALIGN_ELEMENTS = 64


@dataclass(frozen=True)
class StateLayout:
    """A row of ``numel`` elements: for each target A ``[R, H_in]``, then B ``[H_out, R]``, each aligned.

    Beside the row a state has, for each of N targets, its scaling (float32) and its own rank (int32, 0 where it does
    not touch the target). Kernels read up to that rank and apply the scaling; the factors are stored as they are.

    Attributes:
        shape: what a state must fit; its session layers and targets are the rows' targets.
        max_rank: R.
        dtype: of the factors in memory; a state in another dtype is rounded to it. In int8 a factor is whole numbers of
            a step, ``max |factor| / 127``; the steps of A and B are part of the scaling.

    Raises:
        ConfigError: ``max_rank`` under 1.
    """

    shape: StateShape
    max_rank: int
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.max_rank < 1:
            raise ConfigError(f"max_rank={self.max_rank}: at least 1 is needed")

    @cached_property
    def index(self) -> dict[TargetKey, int]:
        """(layer, module) -> which of the N targets it is."""
        keys = [(layer, module) for layer in self.shape.session_layers for module in self.shape.targets]
        return {key: index for index, key in enumerate(keys)}

    @property
    def num_targets(self) -> int:
        """N."""
        return len(self.index)

    @cached_property
    def _offsets(self) -> list[int]:
        """Where A and B of every target begin, and at last where the row ends."""
        offsets = [0]
        for _, module in self.index:
            for features in self.shape.targets[module]:
                numel = -(-self.max_rank * features // _ALIGN_ELEMENTS) * _ALIGN_ELEMENTS
                offsets.append(offsets[-1] + numel)
        return offsets

    @property
    def numel(self) -> int:
        """Elements of a row."""
        return self._offsets[-1]

    @property
    def row_bytes(self) -> int:
        """Bytes of one state in memory: the row, and its scaling and rank for each target."""
        return self.numel * self.dtype.itemsize + 8 * self.num_targets

    def check(self, state: SessionState) -> None:
        """Raise StateFormatError unless the state fits: layers, modules, shapes and rank."""
        check_topology(state, self.shape, self.max_rank)

    def split(self, rows: torch.Tensor, key: TargetKey) -> tuple[torch.Tensor, torch.Tensor]:
        """A ``[S, R, H_in]`` and B ``[S, H_out, R]`` of one target in rows ``[S, numel]``; views."""
        at, (in_features, out_features) = 2 * self.index[key], self.shape.targets[key[1]]
        a_at, b_at = self._offsets[at : at + 2]
        a = rows[:, a_at : a_at + self.max_rank * in_features]
        b = rows[:, b_at : b_at + self.max_rank * out_features]
        return a.view(-1, self.max_rank, in_features), b.view(-1, out_features, self.max_rank)

    def pack(self, state: SessionState, row: torch.Tensor, scaling: torch.Tensor, ranks: torch.Tensor) -> None:
        """Write a state that fits into a row ``[numel]``, its scaling ``[N]`` and ranks ``[N]``, all on the CPU.

        All that the state does not reach becomes zero, so that nothing is left of a larger one.
        """
        all_scaling, all_ranks = [0.0] * self.num_targets, [0] * self.num_targets
        row.zero_()
        for key, pair in state.factors.items():
            a, b = self.split(row[None], key)
            (of_a, a_step), (of_b, b_step) = (_in(self.dtype, factor) for factor in (pair.a, pair.b))
            a[0, : pair.rank].copy_(of_a)
            b[0, :, : pair.rank].copy_(of_b)
            all_scaling[self.index[key]] = pair.scaling * a_step * b_step
            all_ranks[self.index[key]] = pair.rank
        scaling.copy_(torch.tensor(all_scaling))
        ranks.copy_(torch.tensor(all_ranks, dtype=torch.int32))


def _in(dtype: torch.dtype, factor: torch.Tensor) -> tuple[torch.Tensor, float]:
    """What of a factor is stored, and the step that it is to be multiplied with."""
    if dtype != torch.int8:
        return factor, 1.0
    step = float(factor.abs().max()) / 127 or 1.0
    return (factor.float() / step).round(), step
