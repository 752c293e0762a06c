"""Which part of a history is read, and what is first taken out of it (PSS, J.5)."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from pss_engine.errors import ConfigError
from pss_engine.models import Message, Tokenizer
from pss_engine.writer.config import WriterConfig
from pss_engine.writer.history import History, as_lines, cut
from pss_engine.writer.targets import SessionTargets

CARD_TOKENS = 32
RECENT_TOKENS = 128
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def chunks(config: WriterConfig, tokenizer: Tokenizer, history: History, targets: SessionTargets) -> list[list[int]]:
    """The tokens of phase 1 in chunks of ``chunk_tokens``, in the order in which they are read.

    Raises:
        ConfigError: the coverage or a deletion needs a target that is not there.
    """
    turns = history.turns
    for deletion in config.deletions:
        turns = without(turns, _phrases(deletion, targets), deletion)
    ids = tokenizer.encode(_text(config.coverage, turns, targets))
    if config.coverage == "card":
        ids = ids[:CARD_TOKENS]
    elif config.coverage == "last_128":
        ids = ids[-RECENT_TOKENS:]
    elif config.coverage.startswith("first_"):
        ids = ids[: len(ids) * int(config.coverage.removeprefix("first_")) // 100]
    found = cut(ids, config.chunk_tokens)
    if config.coverage == "shuffled":
        random.Random(config.seed).shuffle(found)
    return found


def without(turns: Sequence[Message], phrases: Sequence[str], what: str) -> tuple[Message, ...]:
    """The turns less every sentence that has one of the phrases; a turn of which nothing is left goes too.

    Raises:
        ConfigError: no sentence has any of them: the deletion would be none.
    """
    kept, removed = [], 0
    for turn in turns:
        sentences = _SENTENCE.split(turn["content"])
        left = [s for s in sentences if not any(phrase.lower() in s.lower() for phrase in phrases)]
        removed += len(sentences) - len(left)
        if any(sentence.strip() for sentence in left):
            kept.append({**turn, "content": " ".join(left)})
    if not removed:
        raise ConfigError(
            f"deletion {what}: no sentence of the history has {list(phrases) or 'its target, none given'}"
        )
    return tuple(kept)


def card(targets: SessionTargets) -> str:
    """The structured card of a session: its fields, one a line."""
    lines = [f"{name}: {text}" for name, text in targets.named_fields().items() if text]
    return "\n".join([*lines, f"query: {targets.query or targets.clue}"])


def _text(coverage: str, turns: Sequence[Message], targets: SessionTargets) -> str:
    if coverage == "card":
        return card(targets)
    if coverage == "active_query":
        return targets.query or targets.clue
    return as_lines(turns)


def _phrases(deletion: str, targets: SessionTargets) -> list[str]:
    values: dict[str, Sequence[str]] = {
        "active_query": [targets.query],
        "topic": [targets.topic],
        "entities": targets.entities,
        "key_evidence": targets.evidence,
        "latest_decision": [targets.decision],
        "superseded_decision": [targets.superseded],
    }
    return [value for value in values[deletion] if value.strip()]
