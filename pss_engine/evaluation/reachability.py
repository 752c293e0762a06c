"""Whether recall could have fired: the predicate of ``search_outputs`` over the questions before (CoA-PKV, A.5)."""

from __future__ import annotations

from collections.abc import Sequence

from pss_engine.agents.memory import cosines
from pss_engine.retrieval import Encoder


def stripped(texts: Sequence[str]) -> list[str]:
    """The texts without the prefix and suffix that all of them share, cut at words; instruction boilerplate, mostly."""
    if len(set(texts)) < 2:
        return list(texts)
    prefix = _common(texts)
    start = prefix.rfind(" ") + 1
    rest = [text[start:] for text in texts]
    suffix = _common([text[::-1] for text in rest])[::-1]
    cut = len(suffix) - suffix.find(" ") if " " in suffix else 0
    kept = [text[: len(text) - cut] for text in rest]
    return kept if all(text.strip() for text in kept) else list(texts)


def reachable(encoder: Encoder, texts: Sequence[str], threshold: float) -> list[bool]:
    """For each question that wrote traces, in the order asked: is one before it within ``threshold``?"""
    if not texts:
        return []
    vectors = cosines(encoder, texts)
    scores = vectors @ vectors.T
    return [bool((scores[at, :at] >= threshold).any()) for at in range(len(texts))]


def _common(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    return next((first[:at] for at, letter in enumerate(first) if last[at : at + 1] != letter), first)
