"""Questions and passages that no one here wrote; absent = said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.environment import say
from bench.suites import Options

SOURCES = ("mtrag-human", "mtrag-un", "cast2021")
"""Those of the follow-up sessions whose evidence is in the corpus."""


def rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def followup_corpus(options: Options) -> Path | None:
    return _there(options.data / "followup_corpus.jsonl")


def cranfield(options: Options) -> Path | None:
    folder = options.data / "ir_small"
    return folder if _there(folder / "corpus.jsonl") else None


def followups(options: Options) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Every later turn with evidence, and the turns before it."""
    for session in rows(options.data / "followup_sessions.jsonl"):
        if session["source"] in SOURCES:
            for i, turn in enumerate(session["turns"]):
                if i and turn.get("evidence_ids"):
                    yield session["turns"][:i], turn


def followup_queries(options: Options, field: str) -> list[str]:
    return [turn[field] for _, turn in followups(options) if turn.get(field)]


def _there(path: Path) -> Path | None:
    if path.exists():
        return path
    say(f"bench: {path.name} is not in the data folder; what needs it is skipped (--data)")
    return None
