"""Answers against gold: exact match and token F1, normalised as SQuAD does."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> list[str]:
    """Lower case, no punctuation, no articles; the words."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def exact_match(answer: str, gold: Sequence[str]) -> float:
    return float(any(normalise(answer) == normalise(one) for one in gold))


def token_f1(answer: str, gold: Sequence[str]) -> float:
    """``2 p r / (p + r)`` over words, best over the gold answers; two texts without words agree."""
    return max((_f1(normalise(answer), normalise(one)) for one in gold), default=0.0)


def _f1(said: list[str], gold: list[str]) -> float:
    if not said or not gold:
        return float(said == gold)
    common = sum((Counter(said) & Counter(gold)).values())
    return 2 * common / (len(said) + len(gold))
