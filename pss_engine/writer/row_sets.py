"""Packed rows of the sessions of one update, and the groups in which their own factors and attention are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Group:
    """Sessions computed side by side as [S, t, ...].

    On the CPU a group is one session, so that what it computes does not depend on the others. Elsewhere it is all of
    them, padded to the longest: one launch for the batch.

    Attributes:
        slots: which sessions: indices into the stacked factors.
        span: the rows of the only session; None where rows are gathered.
        gather: [S * t] int64, the row of each place; a place without one repeats the session's first.
        valid: [S * t] bool, the places that have a row.
    """

    slots: list[int]
    shape: tuple[int, int]
    span: slice | None = None
    gather: Tensor | None = None
    valid: Tensor | None = None

    def take(self, x: Tensor) -> Tensor:
        """Rows [T, ...] as [S, t, ...]; zero where a session has no row."""
        if self.span is not None:
            return x[self.span].unsqueeze(0)
        assert self.gather is not None and self.valid is not None
        taken = x[self.gather]
        return (taken * self.valid.view(-1, *[1] * (taken.dim() - 1))).unflatten(0, self.shape)

    def add(self, y: Tensor, delta: Tensor) -> None:
        """Add [S, t, ...] to the rows of y [T, ...]."""
        if self.span is not None:
            y[self.span] += delta[0]
        else:
            y[self._rows] += delta.flatten(0, 1)[self.valid]

    def put(self, y: Tensor, value: Tensor) -> None:
        """Write [S, t, ...] into the rows of y [T, ...]."""
        if self.span is not None:
            y[self.span] = value[0]
        else:
            y[self._rows] = value.flatten(0, 1)[self.valid]

    @cached_property
    def _rows(self) -> Tensor:
        assert self.gather is not None and self.valid is not None
        return self.gather[self.valid]


class RowSet:
    """The rows of each session, one session after another."""

    def __init__(self, slots: Sequence[int], lens: Sequence[int], device: torch.device) -> None:
        self.slots, self.lens, self.device = list(slots), list(lens), device
        self.starts = [sum(self.lens[:i]) for i in range(len(self.lens))]
        self.num_rows = sum(self.lens)

    @cached_property
    def spans(self) -> list[tuple[int, slice]]:
        """The slot and the rows of each session."""
        return [
            (slot, slice(start, start + size))
            for slot, start, size in zip(self.slots, self.starts, self.lens, strict=True)
        ]

    @cached_property
    def groups(self) -> list[Group]:
        if self.device.type == "cpu":
            return [Group([slot], (1, span.stop - span.start), span=span) for slot, span in self.spans]
        return [self.padded()]

    def padded(self) -> Group:
        """All sessions as one group."""
        longest = max(self.lens)
        place = torch.arange(longest, device=self.device)[None]
        lens = torch.tensor(self.lens, device=self.device)[:, None]
        starts = torch.tensor(self.starts, device=self.device)[:, None]
        valid = place < lens
        gather = torch.where(valid, starts + place, starts)
        return Group(self.slots, (len(self.lens), longest), gather=gather.flatten(), valid=valid.flatten())

    def index(self, local: Sequence[Sequence[int]]) -> Tensor:
        """Rows of the packed whole from rows of each session; int64."""
        rows = [start + row for start, rows in zip(self.starts, local, strict=True) for row in rows]
        return torch.tensor(rows, dtype=torch.int64, device=self.device)
