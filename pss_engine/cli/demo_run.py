"""The demo itself, without any output: states written on the spot, follow-ups with the right and with a wrong state."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pss_engine.errors import PSSError
from pss_engine.kv import QueryUsage

if TYPE_CHECKING:
    from pss_engine.demo import Demo, FollowUp
    from pss_engine.retrieval import Passage
    from pss_engine.session import Answer, Evidence, SessionRAG
    from pss_engine.state import SessionState
    from pss_engine.writer import Writer
    from pss_engine.writer.writer import Progress


@dataclass(frozen=True)
class Written:
    """One state and the seconds it took."""

    state: SessionState
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {**self.state.describe(), "seconds": self.seconds}


@dataclass(frozen=True)
class Asked:
    """One follow-up of one session: searched raw, asked with its own state, and with another session's.

    Attributes:
        ranks: place of the gold passage among those found, from 1; 0 = not found. Keys ``raw``, ``clue``, ``wrong``.
    """

    followup: FollowUp
    raw: Evidence
    own: Answer
    wrong: Answer
    ranks: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        raw = [{"id": hit.passage_id, "score": hit.score} for hit in self.raw.hits]
        followup = self.followup
        return {
            "id": followup.id,
            "session": followup.session_id,
            "query": followup.query,
            "gold": list(followup.gold),
            "expected_answer": followup.answer,
            "key_facts": list(followup.key_facts),
            "raw": {"passages": raw, "seconds": self.raw.seconds, "gold_rank": self.ranks["raw"]},
            "clue": {**self._with_facts(self.own), "gold_rank": self.ranks["clue"]},
            "wrong_state": {**self._with_facts(self.wrong), "gold_rank": self.ranks["wrong"]},
        }

    def _with_facts(self, answer: Answer) -> dict[str, Any]:
        text = answer.text.lower()
        return {**answer.to_dict(), "key_facts_found": sum(fact.lower() in text for fact in self.followup.key_facts)}


@dataclass
class DemoReport:
    """What a demo did. ``usage`` holds the calls of the follow-ups asked with their own state."""

    top_k: int
    written: list[Written] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    op_calls: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: float = 0.0

    def num_found(self, way: str) -> int:
        """Follow-ups whose gold passage was found: with ``raw``, ``clue`` or ``wrong``."""
        return sum(asked.ranks[way] > 0 for asked in self.asked)

    @property
    def usage(self) -> QueryUsage:
        return QueryUsage([call for asked in self.asked for call in asked.own.usage.calls])

    @property
    def closing_line(self) -> str:
        n, found, mib = len(self.asked), self.num_found, 1024 * 1024
        return (
            f"demo: gold passage in top {self.top_k}: clue {found('clue')}/{n}, raw {found('raw')}/{n},"
            f" wrong state {found('wrong')}/{n}; peak KV {self.usage.kv_peak_bytes / mib:.1f} MiB,"
            f" cumulative {self.usage.kv_cumulative_bytes / mib:.1f} MiB"
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values.

        Raises:
            PSSError: no token ran with a state, or no adapter was added: the claim of the demo would be empty.
        """
        for counter in ("num_state_tokens", "num_adapter_calls"):
            if not self.counters.get(counter):
                raise PSSError(
                    f"demo: {counter} is {self.counters.get(counter, 0)}: no state was applied, there is no report"
                )
        peak = self.usage.peak_call
        return {
            "closing_line": self.closing_line,
            "top_k": self.top_k,
            "num_followups": len(self.asked),
            "gold_found": {way: self.num_found(way) for way in ("clue", "raw", "wrong")},
            "kv": {
                "kv_peak_bytes": self.usage.kv_peak_bytes,
                "kv_peak_call": {"call_id": peak.call_id, "agent": peak.agent} if peak else None,
                "kv_cumulative_bytes": self.usage.kv_cumulative_bytes,
                "num_calls": len(self.usage.calls),
            },
            "sessions": [written.to_dict() for written in self.written],
            "followups": [asked.to_dict() for asked in self.asked],
            "counters": self.counters,
            "op_calls": self.op_calls,
            "seconds": self.seconds,
        }


def write_states(
    rag: SessionRAG, demo: Demo, writer: Writer, progress: Callable[[str], AbstractContextManager[Progress]]
) -> list[Written]:
    """Write the state of every session of the demo; ``progress(session)`` gives the writer's callback."""
    written = []
    for session in demo.sessions:
        start = time.monotonic()
        with progress(session.session_id) as on_step:
            state = rag.write(session.session_id, session.history, writer=writer, progress=on_step)
        written.append(Written(state, time.monotonic() - start))
    return written


def ask_followups(rag: SessionRAG, demo: Demo, on_asked: Callable[[Sequence[Asked]], None]) -> list[Asked]:
    """Ask every follow-up of the sessions that share its words, each with its own state and with the next session's.

    All of them decode in one batch: rows of every state, and of the base model when it answers.
    """
    sessions = [session.session_id for session in demo.sessions]
    another = dict(zip(sessions, [*sessions[1:], sessions[0]], strict=True))
    asked: list[Asked] = []
    for _, group in groupby(demo.followups, key=lambda followup: followup.query):
        followups = list(group)
        raw = rag.retrieve([[f.query] for f in followups])
        own = [(f.session_id, f.query) for f in followups]
        answers = rag.ask_many([*own, *((another[session_id], query) for session_id, query in own)])
        found = zip(followups, raw, answers[: len(own)], answers[len(own) :], strict=True)
        batch = [_asked(*one) for one in found]
        on_asked(batch)
        asked += batch
    return asked


def _asked(followup: FollowUp, raw: Evidence, own: Answer, wrong: Answer) -> Asked:
    found = {"raw": raw, "clue": own.evidence, "wrong": wrong.evidence}
    ranks = {way: _gold_rank(evidence, followup.gold) for way, evidence in found.items()}
    return Asked(followup, raw, own, wrong, ranks)


def _gold_rank(evidence: Evidence, gold: Sequence[str]) -> int:
    ranks = (rank for rank, passage in enumerate(evidence.passages, 1) if is_gold(passage, gold))
    return next(ranks, 0)


def is_gold(passage: Passage, gold: Sequence[str]) -> bool:
    """Whether a passage, or the document that it was cut from, is one of the gold ids."""
    return passage.id in gold or passage.doc_id in gold
