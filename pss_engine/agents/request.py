"""What is asked of the service. Arms are requests that differ in as few fields as possible, and say so."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from pss_engine.errors import RequestRejected

PIPELINES = ("flat", "rag", "coa")


@dataclass(frozen=True)
class AgentRequest:
    """One question.

    Attributes:
        pipeline: ``flat`` (closed book, one call), ``rag`` (one call over the passages found) or ``coa`` (all nodes).
        kv_enabled: whether traces are recalled and written. The only field in which CoA-PKV and CoA-NoKV differ.
        session: the session state that gives each retrieval its clue, in place of the Retriever; empty = none.
        scope: ids of the passages that may be found; None = all.
    """

    question: str
    question_id: str = ""
    pipeline: str = "coa"
    kv_enabled: bool = True
    session: str = ""
    scope: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise RequestRejected("the question is empty")
        if self.pipeline not in PIPELINES:
            raise RequestRejected(f"pipeline {self.pipeline!r} is unknown; choices: {', '.join(PIPELINES)}")
        if self.session and self.pipeline != "coa":
            raise RequestRejected(f"pipeline {self.pipeline!r} has no clues; a session needs pipeline coa")

    def to_dict(self) -> dict[str, Any]:
        """As it is serialised; the diff of two arms is taken over this."""
        return asdict(self)


ARMS = MappingProxyType(
    {
        "flat": {"pipeline": "flat", "kv_enabled": False},
        "rag": {"pipeline": "rag", "kv_enabled": False},
        "coa-nokv": {"pipeline": "coa", "kv_enabled": False},
        "coa-pkv": {"pipeline": "coa", "kv_enabled": True},
        "coa-pss": {"pipeline": "coa", "kv_enabled": False},
    }
)
"""Fields of each arm; ``coa-pss`` needs a session too, which is the question's own."""


def as_arm(request: AgentRequest, arm: str) -> AgentRequest:
    """The request as an arm sends it. Raises RequestRejected for an unknown arm, or coa-pss without a session."""
    if arm not in ARMS:
        raise RequestRejected(f"arm {arm!r} is unknown; choices: {', '.join(ARMS)}")
    if arm == "coa-pss" and not request.session:
        raise RequestRejected("arm 'coa-pss' needs a session, whose state gives the clues")
    fields: dict[str, Any] = {**ARMS[arm], "session": request.session if arm == "coa-pss" else ""}
    return replace(request, **fields)
