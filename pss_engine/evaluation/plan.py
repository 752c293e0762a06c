"""What a run is: arms, questions, replicates, and in which order they are asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pss_engine.agents import ARMS, AgentRequest, as_arm
from pss_engine.errors import ConfigError
from pss_engine.evaluation.questions import Question


@dataclass(frozen=True)
class RunPlan:
    """All that a run is made of; it goes on only where all of it is the same.

    Attributes:
        arms: names of ``ARMS``.
        dataset: name and digest of the questions' file; ``cells``: questions of each dataset in it.
        endpoints, limits: as they describe themselves.
    """

    arms: tuple[str, ...]
    question_ids: tuple[str, ...]
    replicates: int
    seed: int
    dataset: str
    cells: Mapping[str, int]
    endpoints: Mapping[str, Any]
    limits: Mapping[str, Any]
    versions: Mapping[str, str]

    def __post_init__(self) -> None:
        if unknown := [arm for arm in self.arms if arm not in ARMS]:
            raise ConfigError(f"arm {unknown[0]!r} is unknown; choices: {', '.join(ARMS)}")
        if not self.arms or len(set(self.arms)) < len(self.arms):
            raise ConfigError("a run needs at least one arm, and each once")
        if self.replicates < 1:
            raise ConfigError(f"replicates is {self.replicates}; at least 1 is needed")

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    @property
    def digest(self) -> str:
        """Of all that must be the same in every record of a run; versions of libraries are not among it."""
        fixed = {name: value for name, value in self.to_dict().items() if name != "versions"}
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Turn:
    """One question in one arm. ``position``: how many were asked before it in the run."""

    position: int
    replicate: int
    arm: str
    question: Question
    request: AgentRequest

    @property
    def key(self) -> tuple[int, str, str]:
        return self.replicate, self.arm, self.question.id


def turns(plan: RunPlan, questions: Sequence[Question]) -> Iterator[Turn]:
    """Arms are interleaved by question; their order rotates from question to question and replicate to replicate, and
    every other round it is turned round.

    So every arm is first equally often, of any two arms each comes before the other equally often (a rotation alone
    leaves neighbours in their order), and a machine that slows down slows all arms alike.
    """
    position = 0
    for replicate in range(plan.replicates):
        for at, question in enumerate(questions):
            round_, shift = divmod(at + replicate, len(plan.arms))
            order = [*plan.arms[shift:], *plan.arms[:shift]]
            if round_ % 2:
                order.reverse()
            scope = tuple(passage.id for passage in question.passages)
            request = AgentRequest(question.text, question.id, session=question.session, scope=scope, seed=plan.seed)
            for arm in order:
                yield Turn(position, replicate, arm, question, as_arm(request, arm))
                position += 1
