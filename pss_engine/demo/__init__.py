"""The bundled demo: three session histories, vague follow-ups that fit all three, and one shared corpus.

Only a session's history and its two clues reach the writer. Gold passages, answers and key facts are for the report.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pss_engine.writer import History


@dataclass(frozen=True)
class DemoSession:
    """A session history.

    Attributes:
        session_id: name of the session.
        turns: chat turns, ``{"role": "user" or "assistant", "content": text}``, alternating, the user first.
        clue: the search text of what is current in the session (z+ of the writer).
        negative_clue: the same for an archived alternative of the same session (z-).
    """

    session_id: str
    turns: tuple[dict[str, str], ...]
    clue: str
    negative_clue: str

    @property
    def history(self) -> History:
        """The turns with the clues as targets, as the writer takes them."""
        from pss_engine.writer import History, SessionTargets

        return History.of(self.turns, SessionTargets(self.clue, self.negative_clue))


@dataclass(frozen=True)
class FollowUp:
    """A follow-up asked in one session.

    Attributes:
        id: name of the question; the same question in another session has the same id and the same words.
        session_id: the session that it is asked in.
        query: the words.
        gold: ids of the passages that answer it in this session; any of them will do.
        answer: a short expected answer.
        key_facts: pieces of the answer that the gold passages hold and the session's history does not.
    """

    id: str
    session_id: str
    query: str
    gold: tuple[str, ...]
    answer: str
    key_facts: tuple[str, ...]


@dataclass(frozen=True)
class Demo:
    """The whole demo.

    Attributes:
        sessions: ordered by id.
        followups: question by question, and for each question session by session.
        corpus_path: a JSONL file for ``Corpus.load``.
    """

    sessions: tuple[DemoSession, ...]
    followups: tuple[FollowUp, ...]
    corpus_path: Path


def load_demo() -> Demo:
    """Read the demo that is installed with the package."""
    root = Path(str(resources.files(__name__)))
    sessions = tuple(_session(path) for path in sorted((root / "sessions").glob("*.jsonl")))
    questions = json.loads((root / "followups.json").read_text(encoding="utf-8"))["followups"]
    followups = tuple(_followup(question, session.session_id) for question in questions for session in sessions)
    return Demo(sessions, followups, root / "corpus.jsonl")


def _session(path: Path) -> DemoSession:
    head, *turns = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return DemoSession(head["session"], tuple(turns), head["clue"], head["negative_clue"])


def _followup(question: dict[str, Any], session_id: str) -> FollowUp:
    probe = question["probes"][session_id]
    return FollowUp(
        question["id"],
        session_id,
        question["text"],
        tuple(probe["gold"]),
        probe["answer"],
        tuple(probe["key_facts"]),
    )
