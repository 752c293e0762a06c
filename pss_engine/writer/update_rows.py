"""The rows of one update of a batch: which of them are seen by which, give a loss, and need a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pss_engine.writer.lessons import Lesson
from pss_engine.writer.row_sets import Group, RowSet


@dataclass(frozen=True, eq=False)
class Prepared:
    """A lesson with what is known of it before any factor is learned.

    Attributes:
        hidden: [rows, H], output of the layers below the cut.
        positions: [rows] int64.
        masks: by attention window (None: no window) [rows, rows] float32, 0 or -inf.
    """

    lesson: Lesson
    hidden: Tensor
    positions: Tensor
    masks: dict[int | None, Tensor]

    def with_negative(self, num_tokens: int) -> Prepared:
        """The same with the first tokens of the negative only; at least one."""
        if num_tokens >= len(self.lesson.negative):
            return self
        lesson = replace(self.lesson, negative=self.lesson.negative[:num_tokens])
        first = slice(lesson.num_rows)
        masks = {window: mask[first, first] for window, mask in self.masks.items()}
        return Prepared(lesson, self.hidden[first], self.positions[first], masks)


def visibility(lesson: Lesson, window: int | None, device: torch.device) -> Tensor:
    """[rows, rows] float32: 0 where a row attends to another, else -inf. The two targets do not see each other."""
    positions = torch.tensor(lesson.positions, device=device)
    row = torch.arange(lesson.num_rows, device=device)
    seen = row[:, None] >= row[None]
    negative = row >= lesson.num_live_rows
    positive = (row >= len(lesson.prompt)) & ~negative
    seen &= ~(negative[:, None] & positive[None])
    if window is not None:
        seen &= positions[:, None] - positions[None] < window
    return torch.zeros(seen.shape, device=device).masked_fill_(~seen, -torch.inf)


class UpdateRows:
    """The lessons of some sessions, packed; ``slots`` says where the factors of each are."""

    def __init__(self, slots: Sequence[int], prepared: Sequence[Prepared]) -> None:
        self.slots, self.prepared = list(slots), list(prepared)
        self.device = prepared[0].hidden.device
        self.all = RowSet(slots, [p.lesson.num_rows for p in prepared], self.device)
        self.hidden = _cat([p.hidden for p in prepared])
        self.positions = _cat([p.positions for p in prepared])
        self.positive_labels = self._labels([p.lesson.positive for p in prepared])
        self.negative_labels = self._labels([p.lesson.negative for p in prepared])

    @property
    def lessons(self) -> list[Lesson]:
        return [prepared.lesson for prepared in self.prepared]

    @cached_property
    def _told(self) -> list[list[int]]:
        """The rows of each session that give a loss: what its last layer computes after attention."""
        return [sorted({*lesson.positive_rows, *lesson.negative_rows}) for lesson in self.lessons]

    @cached_property
    def told(self) -> RowSet:
        return RowSet(self.slots, [len(rows) for rows in self._told], self.device)

    @cached_property
    def told_index(self) -> Tensor:
        """[told rows] int64 into all rows."""
        return self.all.index(self._told)

    @cached_property
    def positive_index(self) -> Tensor:
        """[positive labels] int64 into the told rows."""
        return self._within_told([lesson.positive_rows for lesson in self.lessons])

    @cached_property
    def negative_index(self) -> Tensor:
        return self._within_told([lesson.negative_rows for lesson in self.lessons])

    def live(self, with_negative: Sequence[bool]) -> LiveRows:
        """The rows that a gradient flows through; ``with_negative``: whether each session's hinge is active."""
        lens = [
            lesson.num_rows if wanted else lesson.num_live_rows
            for lesson, wanted in zip(self.lessons, with_negative, strict=True)
        ]
        return LiveRows(self, lens)

    def masks(self, window: int | None, rows: RowSet) -> list[Tensor]:
        """For each group of ``rows``, the first ones of each session, [S, t, t]."""
        masks = dict(zip(rows.slots, (p.masks[window] for p in self.prepared), strict=True))
        return [_stack_masks([masks[slot] for slot in group.slots], rows, group) for group in rows.groups]

    def _within_told(self, local: list[list[int]]) -> Tensor:
        return self.told.index([_places(told, rows) for told, rows in zip(self._told, local, strict=True)])

    def _labels(self, labels: list[tuple[int, ...]]) -> Tensor:
        return torch.tensor([token for tokens in labels for token in tokens], dtype=torch.int64, device=self.device)


class LiveRows:
    """The first rows of each session, as many as need a gradient; ``told`` are those of them that give a loss."""

    def __init__(self, update: UpdateRows, lens: Sequence[int]) -> None:
        told = [[row for row in rows if row < size] for rows, size in zip(update._told, lens, strict=True)]
        self._all_live = list(lens) == update.all.lens
        self.all = update.all if self._all_live else RowSet(update.slots, lens, update.device)
        self.told = update.told if self._all_live else RowSet(update.slots, [len(rows) for rows in told], update.device)
        self._index = _first(update.all, lens)
        self._told_index = _first(update.told, self.told.lens)
        self._told_of_all = self.all.index(told)

    def of_all(self, x: Tensor) -> Tensor:
        """The live ones of all rows."""
        return x if self._all_live else x[self._index]

    def of_told(self, x: Tensor) -> Tensor:
        """The live ones of the told rows."""
        return x if self._all_live else x[self._told_index]

    def spread(self, told: Tensor) -> Tensor:
        """Live told rows [told, C] among all live ones [all, C], the others zero."""
        return told.new_zeros(self.all.num_rows, told.shape[1]).index_copy_(0, self._told_of_all, told)


def _first(rows: RowSet, lens: Sequence[int]) -> Tensor | slice:
    """The first rows of each session; of one session a view."""
    return slice(lens[0]) if len(lens) == 1 else rows.index([range(size) for size in lens])


def _places(rows: Sequence[int], wanted: Sequence[int]) -> list[int]:
    at = {row: place for place, row in enumerate(rows)}
    return [at[row] for row in wanted]


def _cat(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _stack_masks(masks: Sequence[Tensor], rows: RowSet, group: Group) -> Tensor:
    size = group.shape[1]
    if len(masks) == 1:
        return masks[0][None, :size, :size]
    # a place without a row sees itself alone, so that no sum of shares is over nothing
    nothing = torch.full((size, size), -torch.inf, device=masks[0].device).fill_diagonal_(0.0)
    stacked = nothing.repeat(len(masks), 1, 1)
    for mask, into, count in zip(masks, stacked, rows.lens, strict=True):
        into[:count, :count] = mask[:count, :count]
    return stacked
