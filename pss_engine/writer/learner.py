"""One session while it is learned: its schedule, its optimizer, what has become of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pss_engine.errors import PSSError
from pss_engine.writer.factors import Pair
from pss_engine.writer.lessons import Phase
from pss_engine.writer.update_rows import Prepared

BETAS, EPS = (0.9, 0.999), 1e-8
SPARE = 2
"""Tokens of z- beyond those that sufficed in the last update."""


class LearningFailed(PSSError):
    """A session whose loss or gradient is not finite; the message names session, phase and update."""


@dataclass
class Losses:
    """l(z+) of every update, in nats, by phase."""

    by_phase: dict[str, list[float]] = field(default_factory=dict)

    def add(self, phase: str, loss: float) -> None:
        self.by_phase.setdefault(phase, []).append(loss)


@dataclass
class Outcome:
    """What an update found of a session, before its step.

    Attributes:
        loss: l(z+), in nats.
        negative_tokens: the first tokens of z- that sufficed to see whether the hinge is active.
    """

    loss: float
    hinge_active: bool = False
    negative_tokens: int = 0


class SlotOptimizer:
    """AdamW without weight decay over the factors of one slot; optionally float64 masters and moments on the CPU.

    The gradient is clipped to ``max_grad_norm`` by its own norm. The update is ``torch.optim.AdamW``'s fused kernel;
    the class around it would import torch's compiler: a second and a half, and 150 MiB.
    """

    def __init__(self, values: Tensor, grads: Tensor, learning_rate: float, stable: bool, half: Tensor | None) -> None:
        """values, grads: [N] float32, the slot's rows. ``half``: [N], 0 where nothing is learned."""
        self._values, self._grads, self._half = values, grads, half
        self._master = values.to("cpu", torch.float64, copy=True) if stable else values
        self._learning_rate = learning_rate
        self._moments = torch.zeros_like(self._master), torch.zeros_like(self._master)
        self._steps = torch.zeros((), device=self._master.device)

    @torch.no_grad()
    def step(self, max_grad_norm: float) -> bool:
        """One update; False, and no update, where the gradient is not finite."""
        if self._half is not None:
            self._grads.mul_(self._half)
        norm = float(self._grads.norm())
        if not norm < float("inf"):
            return False
        if norm > max_grad_norm:
            self._grads.mul_(max_grad_norm / (norm + 1e-6))
        mean, square = self._moments
        self._steps += 1
        torch._fused_adamw_(
            [self._master],
            [self._grads.to(self._master)],
            [mean],
            [square],
            [],
            [self._steps],
            lr=self._learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )
        if self._master is not self._values:
            self._values.copy_(self._master)
        return True


class Learner:
    """A session's way through its phases.

    Args:
        initial: factors to go on from; None: new ones of ``seed``.
        early_stop_loss: a readout phase ends once l(z+) is below this and its hinge is not active; 0: never.
    """

    def __init__(
        self,
        name: str,
        phases: Sequence[Phase],
        seed: int,
        initial: Mapping[tuple[int, str], Pair] | None = None,
        early_stop_loss: float = 0.0,
    ) -> None:
        self.name, self.phases, self.seed, self.initial = name, list(phases), seed, initial
        self.losses = Losses()
        self.failure: LearningFailed | None = None
        self.slot = -1
        self.hinge_active = True  # of the last update; before the first one both targets are as unlikely
        self._early_stop_loss = early_stop_loss
        self._at = 0
        self._begin_phase()

    @property
    def done(self) -> bool:
        return self._at >= len(self.phases)

    @property
    def phase(self) -> Phase:
        return self.phases[self._at]

    @property
    def step(self) -> int:
        """Updates made in the phases of this one's name."""
        before = [phase.num_steps for phase in self.phases[: self._at] if phase.name == self.phase.name]
        return sum(before) + self._step

    def num_steps(self, name: str) -> int:
        """Updates of all phases of a name, if none ends early."""
        return sum(phase.num_steps for phase in self.phases if phase.name == name)

    @property
    def lesson(self) -> int:
        """Which of the phase's lessons is next."""
        return self.phase.lesson(self._step)

    @property
    def negative_tokens(self) -> int:
        """How many first tokens of z- are worth trying: where the hinge was 0, as many as showed it and a few more."""
        return self._negative_tokens.get(self.lesson, sys.maxsize)

    def advance(self, outcome: Outcome) -> None:
        """Record an update."""
        phase = self.phase
        self.losses.add(phase.name, outcome.loss)
        self._negative_tokens[self.lesson] = sys.maxsize if outcome.hinge_active else outcome.negative_tokens + SPARE
        if not phase.comes_again(self._step):
            self.prepared.pop(self.lesson, None)
        self._step += 1
        self.hinge_active = outcome.hinge_active
        early = phase.name == "readout" and not outcome.hinge_active and outcome.loss < self._early_stop_loss
        if self._step >= phase.num_steps or early:
            self._at += 1
            self._begin_phase()

    def fail(self, what: str) -> None:
        """End here; the session has no state."""
        where = f"session {self.name}: {what} in update {self._step + 1} of phase {self.phase.name}"
        self.failure = LearningFailed(f"{where}; lower the learning rate or look at its history")
        self._at = len(self.phases)

    def restart(self) -> None:
        """Forget what was learned, to begin again in another batch."""
        self.losses = Losses()
        self._at, self.slot = 0, -1
        self._begin_phase()

    def _begin_phase(self) -> None:
        self._step = 0
        self.optimizer: SlotOptimizer | None = None
        self.prepared: dict[int, Prepared] = {}  # by lesson
        self._negative_tokens: dict[int, int] = {}
