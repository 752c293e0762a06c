"""What is kept of one question: answer, outcome, trace, cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pss_engine.agents.calls import CallRecord
from pss_engine.agents.request import AgentRequest
from pss_engine.agents.spans import Span
from pss_engine.kv import QueryUsage

OUTCOMES = ("accepted", "unjudged", "gave_up", "failed")


@dataclass
class Step:
    """One line of the trace that a person reads: who, at which sub-question and loop, said what."""

    agent: str
    question: int
    loop: int
    text: str
    passage_ids: tuple[str, ...] = ()
    trace_ids: tuple[str, ...] = ()
    score: float | None = None


@dataclass
class QueryRecord:
    """The life of one question.

    Attributes:
        outcome: ``accepted`` by the answer critic; ``unjudged``: its verdict could not be read; ``gave_up``: no attempt
            was accepted, or the calls were spent; ``failed``: a call brought no answer. The last two count as failures.
        cause: of what was not accepted.
        recall_allowed: what the service made of the request's ``kv_enabled``: read here, set nowhere else.
        recalled: ids of the traces that entered prompts.
    """

    query: str
    request: AgentRequest
    answer: str = ""
    outcome: str = "failed"
    cause: str = ""
    recall_allowed: bool = False
    recalled: tuple[str, ...] = ()
    seconds: float = 0.0
    usage: QueryUsage = field(default_factory=QueryUsage)
    calls: list[CallRecord] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return self.outcome in ("gave_up", "failed")

    def to_dict(self) -> dict[str, Any]:
        return {
            "query": self.query,
            "request": self.request.to_dict(),
            "answer": self.answer,
            "outcome": self.outcome,
            "cause": self.cause,
            "recall_allowed": self.recall_allowed,
            "recalled": list(self.recalled),
            "seconds": self.seconds,
            "usage": self.usage.to_dict(),
            "calls": [call.to_dict() for call in self.calls],
            "steps": [dict(vars(step)) for step in self.steps],
            "spans": [span.to_dict() for span in self.spans],
        }
