"""Decides which sequences run in the next step, and with how many tokens. Integers only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pss_engine.config import EngineConfig
    from pss_engine.engine.sequence import Sequence


@dataclass(frozen=True)
class Chunk:
    """``num_tokens`` pending tokens of one sequence, run in this step."""

    sequence: Sequence
    num_tokens: int

    @property
    def completes(self) -> bool:
        """Whether the next token can be sampled after this chunk."""
        return self.num_tokens == self.sequence.num_pending


class Scheduler:
    """Continuous batching: decoding rows first, then prefill in chunks, then new sequences in order of arrival.

    Args:
        take_slot: make a sequence's state resident; False where no slot is free: the sequence waits, others pass.
        give_slot: let it go again.
    """

    def __init__(
        self, config: EngineConfig, take_slot: Callable[[Sequence], bool], give_slot: Callable[[Sequence], None]
    ) -> None:
        self._config, self._take_slot, self._give_slot = config, take_slot, give_slot
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence that is finished or aborted, and its slot."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._give_slot(sequence)
        else:
            self.waiting.remove(sequence)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step; memory for them is already held."""
        budget = self._config.max_batched_tokens
        chunks: list[Chunk] = []
        preempted = False
        for sequence in sorted(self.running, key=lambda s: s.num_pending > 1):
            num_tokens = min(sequence.num_pending, budget)
            if sequence not in self.running or num_tokens == 0:
                continue
            while not sequence.kv.can_hold(sequence.num_stored + num_tokens):
                preempted = True
                victim = self._youngest_outside(chunks)
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                budget -= self._plan(chunks, sequence, num_tokens)
        if not preempted:
            self._admit(chunks, budget)
        return chunks

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        for sequence in list(self.waiting):
            if budget == 0 or len(self.running) >= self._config.max_num_seqs:
                return
            # the whole prompt must fit, so that a half prefilled sequence is not thrown out by the next one
            if not sequence.kv.can_hold(sequence.num_pending):
                return
            if not self._take_slot(sequence):
                continue
            self.waiting.remove(sequence)
            self.running.append(sequence)
            budget -= self._plan(chunks, sequence, min(sequence.num_pending, budget))

    def _plan(self, chunks: list[Chunk], sequence: Sequence, num_tokens: int) -> int:
        sequence.kv.hold(sequence.num_stored + num_tokens)
        chunks.append(Chunk(sequence, num_tokens))
        return num_tokens

    def _youngest_outside(self, chunks: list[Chunk]) -> Sequence:
        planned = {id(chunk.sequence) for chunk in chunks}
        return next(s for s in reversed(self.running) if id(s) not in planned)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_slot(sequence)
        sequence.kv.preempt()
        sequence.num_stored = 0
        self.waiting.appendleft(sequence)
