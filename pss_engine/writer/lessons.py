"""What one update learns: tokens given, tokens to be said, tokens not to be said; and the schedule of such updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lesson:
    """``l(positive | prompt)``, plus a hinge against ``l(negative | prompt)`` where there is a negative.

    A chunk of history is the lesson whose prompt is its first token.
    """

    prompt: tuple[int, ...]
    positive: tuple[int, ...]
    negative: tuple[int, ...] = ()

    @classmethod
    def of_chunk(cls, tokens: Sequence[int]) -> Lesson:
        """Next-token loss over a chunk of at least two tokens."""
        return cls(tuple(tokens[:1]), tuple(tokens[1:]))

    @property
    def num_rows(self) -> int:
        """Tokens that pass through the network: the prompt once, and of each target all but the last."""
        return self.num_live_rows + max(0, len(self.negative) - 1)

    @property
    def num_live_rows(self) -> int:
        """The first rows: prompt and positive. The negative ones come last, and need a gradient less often."""
        return len(self.prompt) + len(self.positive) - 1

    @property
    def positions(self) -> list[int]:
        """Position of each row; the negative continues from the prompt as the positive does."""
        first = len(self.prompt)
        return [*range(self.num_live_rows), *range(first, first + len(self.negative) - 1)]

    @property
    def positive_rows(self) -> list[int]:
        """The rows whose next tokens are ``positive``."""
        return list(range(len(self.prompt) - 1, self.num_live_rows))

    @property
    def negative_rows(self) -> list[int]:
        """The rows whose next tokens are ``negative``; the first one is the prompt's last, as for ``positive``."""
        if not self.negative:
            return []
        return [len(self.prompt) - 1, *range(self.num_live_rows, self.num_rows)]


@dataclass(frozen=True)
class Phase:
    """Updates with one fresh optimizer: ``num_steps`` of them, over the lessons in order, again and again.

    Attributes:
        name: ``history`` or ``readout``.
        half: with two slots, the one that learns in this phase; None: all factors.
    """

    name: str
    learning_rate: float
    num_steps: int
    lessons: tuple[Lesson, ...]
    half: int | None = None

    def lesson(self, step: int) -> int:
        """Index of the lesson of an update."""
        return step % len(self.lessons)

    def comes_again(self, step: int) -> bool:
        """Whether a later update has the same lesson."""
        return step + len(self.lessons) < self.num_steps
