"""What a session's user gets back: the answer, how it was found, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pss_engine.kv import QueryUsage
from pss_engine.retrieval import Hit, Passage


@dataclass(frozen=True)
class Clue:
    """A search text for one query.

    Attributes:
        text: what is searched with; empty in mode ``raw``.
        state_digest: the state that said it.
        seconds: from request to last token.
    """

    text: str
    state_digest: str
    usage: QueryUsage
    seconds: float


@dataclass(frozen=True)
class Evidence:
    """What retrieval found: hits best first, and their passages."""

    hits: tuple[Hit, ...]
    passages: tuple[Passage, ...]
    seconds: float


@dataclass(frozen=True)
class Answer:
    """One follow-up from query to answer."""

    session_id: str
    query: str
    mode: str
    clue: Clue
    evidence: Evidence
    text: str
    finish_reason: str
    usage: QueryUsage
    answer_seconds: float

    @property
    def seconds(self) -> float:
        """Latency of the whole path: clue, retrieval, answer."""
        return self.clue.seconds + self.evidence.seconds + self.answer_seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            "session": self.session_id,
            "query": self.query,
            "mode": self.mode,
            "clue": self.clue.text,
            "state_digest": self.clue.state_digest,
            "passages": [{"id": hit.passage_id, "score": hit.score} for hit in self.evidence.hits],
            "answer": self.text,
            "finish_reason": self.finish_reason,
            "usage": self.usage.to_dict(),
            "seconds": {
                "clue": self.clue.seconds,
                "retrieve": self.evidence.seconds,
                "answer": self.answer_seconds,
                "total": self.seconds,
            },
        }
