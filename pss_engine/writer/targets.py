"""What a state learns to say: the session's clue, and a conflicting one that it must not say.

The types carry a history and two search texts. Answers, evidence ids and labels have no way in.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pss_engine.errors import ConfigError
from pss_engine.models import Message

NUM_SEGMENTS = 8
MIN_LETTERS = 4
NUM_TERMS = 12


@dataclass(frozen=True)
class SessionTargets:
    """What a session is about, in words of its history (PSS, section 2.3).

    Attributes:
        clue, negative_clue: z+ and z-: what is current, and an archived or conflicting one of the same kind.
        topic, entities, decision, query: the fields of the multi-field objectives; ``query`` is the active request.
        superseded, evidence: read by content deletions only, never learned.
    """

    clue: str
    negative_clue: str = ""
    topic: str = ""
    entities: tuple[str, ...] = ()
    decision: str = ""
    query: str = ""
    superseded: str = ""
    evidence: tuple[str, ...] = ()

    def named_fields(self) -> dict[str, str]:
        """The fields beside the query, by the name that their prompt uses."""
        return {"topic": self.topic, "entities": ", ".join(self.entities), "latest decision": self.decision}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str) -> SessionTargets:
        """Read targets from JSON values; ConfigError for an unknown name or a value that is no text (or list of them)."""
        known = {field.name: field.default for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ConfigError(f"{where}: {name!r} is no target; choices: {', '.join(known)}")
            many = isinstance(known[name], tuple)
            texts = value if many and isinstance(value, (list, tuple)) else [value]
            if isinstance(value, (list, tuple)) != many or not all(isinstance(text, str) for text in texts):
                raise ConfigError(f"{where}: {name!r} must be {'a list of strings' if many else 'a string'}")
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """The targets that are given, as JSON values."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items() if v}

    def __post_init__(self) -> None:
        if not self.clue.strip():
            raise ConfigError("clue is empty; a state needs a search text to learn")
        if self.clue.strip() == self.negative_clue.strip():
            raise ConfigError(
                "clue and negative_clue are the same text; the negative one must be an archived or conflicting clue"
            )


def extract_targets(turns: Sequence[Message]) -> SessionTargets:
    """Targets from plain chat by rule: the terms that set the last eighth of the history apart from the rest.

    Terms are scored ``tf * log(segments / segments that have it)`` over eighths of the history; z- is the same for the
    first one. Words that a digit, a hyphen or a capital inside marks as identifiers count double; other words of less
    than four letters are left out.
    """
    segments = _segments([turn["content"] for turn in turns])
    counts = [Counter(_terms(segment)) for segment in segments]
    clue = _distinctive(counts, len(counts) - 1)
    negative = _distinctive(counts, 0) if len(counts) > 1 else []
    if not clue:
        raise ConfigError("no search terms were found in the history; give the clue yourself")
    return SessionTargets(" ".join(clue), " ".join(negative) if negative != clue else "")


def _segments(texts: Sequence[str]) -> list[str]:
    count = min(NUM_SEGMENTS, len(texts))
    bounds = [len(texts) * i // count for i in range(count + 1)]
    return ["\n".join(texts[a:b]) for a, b in itertools.pairwise(bounds)]


def _terms(text: str) -> Iterable[str]:
    for match in re.finditer(r"[A-Za-z0-9][\w.-]*\w|\w{3,}", text):
        word = match.group()
        if _identifier(word):
            yield word
        elif len(word) >= MIN_LETTERS:
            yield word.lower()


def _identifier(word: str) -> bool:
    return any(c.isdigit() for c in word) or "-" in word or "_" in word or any(c.isupper() for c in word[1:])


def _distinctive(counts: Sequence[Counter[str]], index: int) -> list[str]:
    num_segments = len(counts)

    def score(term: str) -> float:
        spread = sum(term in segment for segment in counts)
        # a history of one segment has no other to stand apart from: frequency alone ranks its terms
        rarity = math.log(num_segments / spread) if num_segments > 1 else 1.0
        return counts[index][term] * rarity * (2.0 if _identifier(term) else 1.0)

    best = sorted(counts[index], key=lambda term: (-score(term), term))[:NUM_TERMS]
    order = list(counts[index])
    return sorted(best, key=order.index)
