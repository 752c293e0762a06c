"""What a query may use: loops, attempts, calls, tokens. Integers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pss_engine.errors import ConfigError

MAX_TOKENS = MappingProxyType(
    {
        "decomposer": 96,
        "retriever": 32,
        "reasoner": 128,
        "critic": 64,
        "synthesiser": 48,
        "answer_critic": 48,
        "answerer": 64,
    }
)


@dataclass(frozen=True)
class Limits:
    """Thresholds and limits of the pipeline; the defaults are the paper's where it gives them.

    Attributes:
        threshold: score from which the critics accept (0.70).
        max_loops: attempts of the Reasoner at one sub-question, and of the Synthesiser at the answer (3).
        max_questions: sub-questions of a question.
        max_repairs: times that a malformed reply is asked for again.
        top_k: passages of one ``search_reranked``; ``max_passages``: those that the Reasoner reads at most.
        rag_top_k: passages of the one call of the arm ``rag``.
        recall_threshold: cosine from which a stored trace is recalled (0.6); ``max_recalled``: traces in one prompt.
        max_calls: calls of a query; 0: as many as all loops can need.
        max_tokens: new tokens declared for a call, by agent.
    """

    threshold: float = 0.70
    max_loops: int = 3
    max_questions: int = 3
    max_repairs: int = 1
    top_k: int = 2
    max_passages: int = 3
    rag_top_k: int = 6
    recall_threshold: float = 0.6
    max_recalled: int = 2
    max_calls: int = 0
    max_tokens: Mapping[str, int] = field(default_factory=lambda: dict(MAX_TOKENS))

    def __post_init__(self) -> None:
        for name in ("max_loops", "max_questions", "top_k", "max_passages", "rag_top_k", "max_recalled"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("max_repairs", "max_calls"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for name in ("threshold", "recall_threshold"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 0 to 1")
        if set(self.max_tokens) != set(MAX_TOKENS) or min(self.max_tokens.values()) < 1:
            raise ConfigError(f"max_tokens must give at least 1 token for each of {', '.join(MAX_TOKENS)}")

    @property
    def most_calls(self) -> int:
        """Calls that no query exceeds: every loop runs, every reply is malformed until its last repair."""
        nodes = 1 + self.max_questions * self.max_loops * 3 + self.max_loops * 2
        needed = nodes * (1 + self.max_repairs)
        return min(needed, self.max_calls) if self.max_calls else needed
