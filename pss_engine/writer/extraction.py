"""Targets without hand-work: from a marked request, or from the words that set the end of a history apart."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from pss_engine.errors import ConfigError
from pss_engine.models import Message
from pss_engine.writer.history import History
from pss_engine.writer.targets import SessionTargets

NUM_SEGMENTS = 8
MIN_LETTERS = 4
NUM_TERMS = 12
MAX_CLUE_TOKENS = 24
"""A longer clue is not learned in the updates that there are."""
MARKER = re.compile(r"^\s*active request:\s*(\S.*)$", re.IGNORECASE | re.MULTILINE)
SOURCES = ("given", "history file", "active request", "words of the history")
CountTokens = Callable[[str], int]


def find_targets(
    history: History, given: SessionTargets | None = None, count_tokens: CountTokens = lambda text: len(text.split())
) -> tuple[SessionTargets, str]:
    """The targets of a history and where they come from, one of SOURCES, the first that there is.

    Args:
        count_tokens: of a text; extracted clues have at most MAX_CLUE_TOKENS.

    Raises:
        ConfigError: nothing to search for was found, or the evidence of the targets is not in the history.
    """
    if targets := given or history.targets:
        _check_evidence(targets, history.turns)
        return targets, SOURCES[0] if given else SOURCES[1]
    if targets := _active_request(history, count_tokens):
        return targets, SOURCES[2]
    return extract_targets(history.turns, count_tokens), SOURCES[3]


def extract_targets(
    turns: Sequence[Message], count_tokens: CountTokens = lambda text: len(text.split()), named: str = ""
) -> SessionTargets:
    """Targets from plain chat by rule: the terms that set the last eighth of the history apart from the rest.

    Terms are scored ``tf * log(segments / segments that have it)`` over eighths of the history; z- is the same for the
    first one. Words that a digit, a hyphen or a capital inside marks as identifiers count double; other words of less
    than four letters are left out.

    Args:
        named: a text whose words count double again for z+, where the history has them.
    """
    segments = _segments([turn["content"] for turn in turns])
    counts = [Counter(_terms(segment)) for segment in segments]
    clue = _distinctive(counts, len(counts) - 1, count_tokens, set(_terms(named)))
    negative = _distinctive(counts, 0, count_tokens) if len(counts) > 1 else []
    if not clue:
        raise ConfigError("no search terms were found in the history; give the clue yourself")
    return SessionTargets(" ".join(clue), " ".join(negative) if negative != clue else "")


def _active_request(history: History, count_tokens: CountTokens) -> SessionTargets | None:
    """z+ is the marked request, z- the request before it (PSS, section 2.3)."""
    at, active = history.active, ""
    if at is not None:
        active = history.turns[at]["content"]
    for index, turn in enumerate(history.turns if at is None else ()):
        if turn["role"] == "user" and (marked := MARKER.findall(turn["content"])):
            at, active = index, marked[-1]
    if at is None:
        return None
    earlier = [turn["content"] for turn in history.turns[:at] if turn["role"] == "user"]
    clue = shorten(active, count_tokens)
    negative = shorten(earlier[-1], count_tokens) if earlier else ""
    return SessionTargets(clue, negative if negative != clue else "", query=clue)


def shorten(text: str, count_tokens: CountTokens) -> str:
    """The first words of a text, in at most MAX_CLUE_TOKENS; at least one word."""
    words = text.split()
    while len(words) > 1 and count_tokens(" ".join(words)) > MAX_CLUE_TOKENS:
        words.pop()
    return " ".join(words)


def _check_evidence(targets: SessionTargets, turns: Sequence[Message]) -> None:
    """Evidence is a part of the history, so that nothing from outside can come in by that name."""
    text = " ".join(" ".join(turn["content"].split()) for turn in turns).lower()
    for sentence in targets.evidence:
        if " ".join(sentence.split()).lower() not in text:
            raise ConfigError(
                f"evidence {sentence!r:.60} is not in the history; it must be a part of it, word for word"
            )


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


def _distinctive(
    counts: Sequence[Counter[str]], index: int, count_tokens: CountTokens, named: Collection[str] = ()
) -> list[str]:
    num_segments = len(counts)

    def score(term: str) -> float:
        spread = sum(term in segment for segment in counts)
        # a history of one segment has no other to stand apart from: frequency alone ranks its terms
        rarity = math.log(num_segments / spread) if num_segments > 1 else 1.0
        return counts[index][term] * rarity * (2.0 if _identifier(term) else 1.0) * (2.0 if term in named else 1.0)

    best = sorted(counts[index], key=lambda term: (-score(term), term))[:NUM_TERMS]
    while len(best) > 1 and count_tokens(" ".join(best)) > MAX_CLUE_TOKENS:
        best.pop()
    order = list(counts[index])
    return sorted(best, key=order.index)
