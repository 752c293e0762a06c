"""Learning many sessions in one batch: each update of the batch is one update of every session in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import torch
from torch import Tensor

from pss_engine.errors import CapacityError
from pss_engine.models import DenseAttention, ForwardBatch
from pss_engine.writer.config import WriterConfig
from pss_engine.writer.factor_math import FactorMath
from pss_engine.writer.factors import FactorStack
from pss_engine.writer.learner import Learner, Outcome, SlotOptimizer
from pss_engine.writer.lessons import Lesson
from pss_engine.writer.network import SessionNetwork, Trace
from pss_engine.writer.update_rows import Prepared, UpdateRows, visibility

OnStep = Callable[[Learner, str, int, float], None]
"""``on_step(learner, phase, updates made in it, loss)``."""
SHARED_TOKENS = 1024
"""Tokens of one forward below the cut."""


@dataclass
class UpdateCounters:
    """What was computed; ``rows`` above the cut."""

    updates: int = 0
    active_hinges: int = 0
    forward_rows: int = 0
    backward_rows: int = 0
    shared_tokens: int = 0
    halvings: int = 0


class Trainer:
    """Learns sessions in S slots; one that is done makes room for the next. What a session learns does not depend on
    the others: bit for bit on the CPU in float32 with the compiled extension, elsewhere up to the order of sums.

    Args:
        num_slots: S, sessions at once; halved when memory runs out.
    """

    def __init__(self, network: SessionNetwork, config: WriterConfig, num_slots: int) -> None:
        self._network, self._config, self._num_slots = network, config, num_slots
        self.counters = UpdateCounters()
        self._stack: FactorStack | None = None

    def run(self, waiting: Iterable[Learner], on_step: OnStep, on_done: Callable[[Learner, FactorStack], None]) -> None:
        """Take learners as slots become free, until none is left; ``on_done`` is called as each ends, failed or not.

        Raises:
            CapacityError: one session alone does not fit into memory.
        """
        queue: deque[Learner] = deque()
        source = iter(waiting)
        active: list[Learner] = []
        while True:
            try:
                while len(active) < self._num_slots and (learner := queue.popleft() if queue else next(source, None)):
                    active.append(learner)
                    self._admit(learner, active)
                if not active:
                    return
                self._update(active, on_step)
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                self._halve(error)
                queue.extendleft(reversed(active))
                for learner in active:
                    learner.restart()
                active = []
            for learner in [learner for learner in active if learner.done]:
                active.remove(learner)
                assert self._stack is not None
                on_done(learner, self._stack)

    def _admit(self, learner: Learner, active: list[Learner]) -> None:
        network, config = self._network, self._config
        if self._stack is None:
            layers = network.transformer.session_layers
            device = network.transformer.final_norm.device
            self._stack = FactorStack(network.config, layers, config.rank, config.scaling, self._num_slots, device)
        learner.slot = min(set(range(self._num_slots)) - {other.slot for other in active})
        active.sort(key=lambda other: other.slot)
        if learner.initial is None:
            self._stack.reset(learner.slot, learner.seed)
        else:
            self._stack.load(learner.slot, learner.initial)

    def _update(self, active: Sequence[Learner], on_step: OnStep) -> None:
        assert self._stack is not None
        self._prepare(active)
        factors = FactorMath(self._stack, self._network.dtype)
        for learner in active:
            learner.optimizer = learner.optimizer or self._optimizer(learner)
        outcomes = self._gradients(active, factors, whole=False) or self._gradients(active, factors, whole=True)
        assert outcomes is not None
        for learner, outcome in zip(active, outcomes, strict=True):
            assert learner.optimizer is not None
            if not (outcome.loss == outcome.loss and abs(outcome.loss) < float("inf")):
                learner.fail(f"the loss is {outcome.loss}")
            elif not learner.optimizer.step(self._config.max_grad_norm):
                learner.fail("the gradient is not finite")
            else:
                phase, step = learner.phase.name, learner.step + 1
                learner.advance(outcome)
                on_step(learner, phase, step, outcome.loss)

    def _gradients(self, active: Sequence[Learner], factors: FactorMath, whole: bool) -> list[Outcome] | None:
        """Fill the stack's gradients.

        The loss of a session is ``l(z+) + max(0, margin + l(z+) - l(z-))`` (PSS, equation 4), without z- just l(z+).
        No token of z- adds less than 0 to l(z-), so that its first ones may show that the hinge is 0: most often as
        many as in the last update, and a few more. None if they do not, with ``whole`` unset.
        """
        network, counters = self._network, self.counters
        prepared = [learner.prepared[learner.lesson] for learner in active]
        sizes = [len(each.lesson.negative) for each in prepared]
        if not whole:
            prepared = [
                each.with_negative(learner.negative_tokens) for each, learner in zip(prepared, active, strict=True)
            ]
        rows = UpdateRows([learner.slot for learner in active], prepared)
        counters.forward_rows += rows.all.num_rows
        trace = network.forward(rows, factors)
        # the gradient of z- is needed where its hinge is active: most often where it was
        expected = any(learner.hinge_active and size for learner, size in zip(active, sizes, strict=True))
        counts = [len(rows.positive_index), len(rows.negative_index)]
        index = torch.cat([rows.positive_index, rows.negative_index])
        labels = torch.cat([rows.positive_labels, rows.negative_labels])
        nll, grads = network.losses(trace.hidden[index], labels, sum(counts) if expected else counts[0])
        positive, negative = nll.split(counts)
        outcomes = [Outcome(loss) for loss in _means(positive, [len(lesson.positive) for lesson in rows.lessons])]
        values = iter(negative.tolist())
        for outcome, lesson, size in zip(outcomes, rows.lessons, sizes, strict=True):
            if not size:
                continue
            told = list(islice(values, len(lesson.negative)))
            enough = _enough(told, (self._config.margin + outcome.loss) * size)
            if enough is None and len(told) < size:
                return None
            outcome.hinge_active, outcome.negative_tokens = enough is None, enough or size
        against = grads[counts[0] :] if expected else None
        self._learn(rows, trace, outcomes, grads[: counts[0]], against, factors)
        return outcomes

    def _learn(
        self,
        rows: UpdateRows,
        trace: Trace,
        outcomes: Sequence[Outcome],
        grads: Tensor,
        against: Tensor | None,
        factors: FactorMath,
    ) -> None:
        """The way back; ``grads`` and ``against`` are the gradients of each l(z+) and, if they are known, l(z-)."""
        lessons, hinges = rows.lessons, [outcome.hinge_active for outcome in outcomes]
        weights = [(1.0 + active) / len(lesson.positive) for lesson, active in zip(lessons, hinges, strict=True)]
        d_hidden = torch.zeros_like(trace.hidden)
        d_hidden.index_add_(0, rows.positive_index, grads * _spread(weights, [len(x.positive) for x in lessons], grads))
        if any(hinges):
            self._add_negative(rows, trace.hidden, hinges, against, d_hidden)
        live = rows.live(hinges)
        self._network.backward(trace, live, live.of_told(d_hidden), factors)
        self.counters.updates += len(lessons)
        self.counters.active_hinges += sum(hinges)
        self.counters.backward_rows += live.all.num_rows

    def _add_negative(
        self, rows: UpdateRows, hidden: Tensor, hinges: Sequence[bool], grads: Tensor | None, d_hidden: Tensor
    ) -> None:
        """Add the gradients of -l(z-) of the active hinges; ``grads`` are those of every z-, if they are known."""
        sizes = [len(lesson.negative) for lesson in rows.lessons]
        if grads is None:
            labels = rows.negative_labels
            _, grads = self._network.losses(hidden[rows.negative_index], labels, len(labels))
        weights = [-1.0 / size if active else 0.0 for size, active in zip(sizes, hinges, strict=True)]
        d_hidden.index_add_(0, rows.negative_index, grads * _spread(weights, sizes, grads))

    def _optimizer(self, learner: Learner) -> SlotOptimizer:
        assert self._stack is not None
        phase, stack = learner.phase, self._stack
        half = None if phase.half is None else stack.half(phase.half)
        values, grads = stack.values[learner.slot], stack.grads[learner.slot]
        return SlotOptimizer(values, grads, phase.learning_rate, self._config.stable, half)

    @torch.no_grad()
    def _prepare(self, active: Sequence[Learner]) -> None:
        """Run the layers below the cut for the lessons that are new, as many at once as SHARED_TOKENS allows."""
        new = [learner for learner in active if learner.lesson not in learner.prepared]
        while new:
            batch = [new.pop(0)]
            tokens = _num_tokens(batch[0].phase.lessons[batch[0].lesson])
            while new and (tokens := tokens + _num_tokens(new[0].phase.lessons[new[0].lesson])) <= SHARED_TOKENS:
                batch.append(new.pop(0))
            found = self._shared([learner.phase.lessons[learner.lesson] for learner in batch])
            for learner, prepared in zip(batch, found, strict=True):
                learner.prepared[learner.lesson] = prepared

    def _shared(self, lessons: Sequence[Lesson]) -> list[Prepared]:
        config, transformer = self._network.config, self._network.transformer
        device = transformer.final_norm.device
        segments = [
            [*lesson.prompt, *target[:-1]]
            for lesson in lessons
            for target in (lesson.positive, lesson.negative)
            if target
        ]
        lens = [len(segment) for segment in segments]
        batch = ForwardBatch(
            token_ids=torch.tensor([token for segment in segments for token in segment], device=device),
            positions=torch.cat([torch.arange(size, device=device) for size in lens]),
            attention=DenseAttention(config, lens),
            adapters=None,
            logit_rows=torch.empty(0, dtype=torch.int64, device=device),
        )
        self.counters.shared_tokens += sum(lens)
        hidden = iter(transformer.shared(batch).split(lens))
        found = []
        for lesson in lessons:
            parts = [next(hidden)]
            if lesson.negative:
                parts.append(next(hidden)[len(lesson.prompt) :])
            windows = {config.windows[layer] for layer in transformer.session_layers}
            masks = {window: visibility(lesson, window, device) for window in windows}
            positions = torch.tensor(lesson.positions, device=device)
            found.append(Prepared(lesson, torch.cat(parts), positions, masks))
        return found

    def _halve(self, error: BaseException) -> None:
        """Half of the slots, in new memory: the sessions begin again, and learn what they would have learned."""
        if self._num_slots == 1:
            reason = " ".join(str(error).split())[:120]
            raise CapacityError(f"writer: one session does not fit into memory ({reason}); sessions", 1, 0) from error
        self._num_slots //= 2
        self.counters.halvings += 1
        self._stack = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _num_tokens(lesson: Lesson) -> int:
    return sum(len(lesson.prompt) + len(target) - 1 for target in (lesson.positive, lesson.negative) if target)


def _means(values: Tensor, sizes: Sequence[int]) -> list[float]:
    means: list[float] = torch.stack([part.mean() for part in values.split(list(sizes))]).tolist()
    return means


def _enough(values: Sequence[float], needed: float) -> int | None:
    """How many of the first values have the sum that is needed; None if all have less."""
    return next((i for i, total in enumerate(accumulate(values), start=1) if total >= needed), None)


def _spread(weights: Sequence[float], sizes: Sequence[int], like: Tensor) -> Tensor:
    """[sum of sizes, 1], each weight as often as its size says."""
    repeated = [weight for weight, size in zip(weights, sizes, strict=True) for _ in range(size)]
    return torch.tensor(repeated, dtype=like.dtype, device=like.device)[:, None]


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
