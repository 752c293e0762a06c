"""Prompts, each in a file of its own: ``small`` asks for lines, ``large`` for JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template

from pss_engine.errors import ConfigError
from pss_engine.models import Message
from pss_engine.retrieval.passage import Passage

SETS = ("small", "large")
NAMES = ("decomposer", "retriever", "reasoner", "critic", "synthesiser", "answer_critic", "answerer", "repair")
NOTHING_FOUND = "(no passage was found)"


@cache
def template(prompts: str, name: str) -> Template:
    """A prompt by set and agent. Raises ConfigError for an unknown set."""
    if prompts not in SETS:
        raise ConfigError(f"prompts {prompts!r} are unknown; choices: {', '.join(SETS)}")
    return Template((Path(__file__).parent / prompts / f"{name}.txt").read_text("utf-8"))


def render(prompts: str, name: str, values: Mapping[str, str]) -> list[Message]:
    """One user message; lines that a missing part leaves empty are closed up."""
    lines = template(prompts, name).substitute(values).strip().split("\n")
    kept = [line for at, line in enumerate(lines) if line or (at and lines[at - 1])]
    return [{"role": "user", "content": "\n".join(kept)}]


def evidence_text(passages: Sequence[Passage]) -> str:
    """Numbered passages, best first."""
    return "\n\n".join(f"[{at}] {passage.rendered}" for at, passage in enumerate(passages, 1)) or NOTHING_FOUND


def digest(messages: Sequence[Message]) -> str:
    """SHA-256 over roles and contents, for run records."""
    sha = hashlib.sha256()
    for message in messages:
        sha.update(f"{message['role']}\0{message['content']}\0".encode("utf-8", "surrogatepass"))
    return sha.hexdigest()
