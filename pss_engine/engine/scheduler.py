"""Decides which sequences run in the next step, and with how many tokens. Integers only."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pss_engine.config import EngineConfig
    from pss_engine.engine.sequence import Sequence


@dataclass(frozen=True)
class Chunk:
    """What one sequence runs in this step.

    Attributes:
        num_pending: of its pending tokens, so many.
        draft: tokens after the last pending one that are only supposed.
    """

    sequence: Sequence
    num_pending: int
    draft: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.num_pending + len(self.draft)

    @property
    def completes(self) -> bool:
        """Whether the next token can be sampled after this chunk."""
        return self.num_pending == self.sequence.num_pending


class Scheduler:
    """Continuous batching: decoding rows first, then prefill in chunks, then new sequences.

    New sequences come by priority, then in order of arrival. One whose state is not ready is passed by others with a
    state at most ``max_overtakes`` times; from then on those wait behind it, running ones end, and a slot comes free:
    no state can starve another. Memory is given in order: where the next sequence does not fit, none after it starts.

    Args:
        take_slot: hold a sequence's state; False where it is not ready, and a load has begun if there is room for it.
        give_slot: let it go again.
    """

    def __init__(
        self, config: EngineConfig, take_slot: Callable[[Sequence], bool], give_slot: Callable[[Sequence], None]
    ) -> None:
        self._config, self._take_slot, self._give_slot = config, take_slot, give_slot
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_turn)

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
        # drafts may use what is left when every row has a token
        spare = budget - len(self.running)
        for sequence in sorted(self.running, key=lambda s: s.num_pending > 1):
            num_pending = min(sequence.num_pending, budget)
            if sequence not in self.running or num_pending == 0:
                continue
            while not sequence.kv.can_hold(sequence.num_stored + num_pending):
                preempted = True
                victim = self._youngest_outside(chunks)
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                chunk = self._plan(sequence, num_pending, min(spare, budget - num_pending))
                spare -= len(chunk.draft)
                budget -= chunk.num_tokens
                chunks.append(chunk)
        if not preempted:
            self._admit(chunks, budget)
        return chunks

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        passed: list[Sequence] = []
        for sequence in list(self.waiting):
            if budget == 0 or len(self.running) >= self._config.max_num_seqs:
                return
            must_wait = any(s.num_overtaken >= self._config.max_overtakes for s in passed)
            if sequence.state is not None and must_wait:
                continue
            prefix = sequence.kv.find_prefix(sequence.token_ids)
            # the whole prompt must fit, so that a half prefilled sequence is not thrown out by the next one
            if not sequence.kv.can_adopt(prefix, len(sequence.token_ids)):
                return
            if not self._take_slot(sequence):
                passed.append(sequence)
                continue
            sequence.adopt(prefix)
            self.waiting.remove(sequence)
            self.running.append(sequence)
            if sequence.state is not None:
                for other in passed:
                    other.num_overtaken += 1
            num_pending = min(sequence.num_pending, budget)
            chunk = self._plan(sequence, num_pending, budget - num_pending)
            budget -= chunk.num_tokens
            chunks.append(chunk)

    def _plan(self, sequence: Sequence, num_pending: int, spare: int) -> Chunk:
        """The sequence's chunk of this step, its memory held; with a draft of at most ``spare`` tokens if it fits."""
        chunk = Chunk(sequence, num_pending)
        if chunk.completes:
            draft = sequence.draft(spare)
            if sequence.kv.can_hold(sequence.num_stored + num_pending + len(draft)):
                chunk = Chunk(sequence, num_pending, tuple(draft))
        sequence.kv.hold(sequence.num_stored + chunk.num_tokens)
        return chunk

    def _youngest_outside(self, chunks: list[Chunk]) -> Sequence:
        planned = {id(chunk.sequence) for chunk in chunks}
        return next(s for s in reversed(self.running) if id(s) not in planned)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_slot(sequence)
        sequence.kv.preempt()
        sequence.rewind()
        self.add(sequence)


def _turn(sequence: Sequence) -> tuple[int, float]:
    return (-sequence.request.priority, sequence.arrival)
