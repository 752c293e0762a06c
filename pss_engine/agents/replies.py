"""Replies of models to values, strictly: what is not in the form that was asked for is malformed, never guessed at.

Two forms, one for each set of prompts: ``json`` (one object, nothing else; one code fence around it is allowed) and
``lines``, for models too small to write JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pss_engine.agents.messages import Verdict

_FENCE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)
_BULLET = re.compile(r"^(?:\d+[.)]|[-*])\s+")
_NUMBER = r"(0(?:\.\d+)?|1(?:\.0+)?)"
_VERDICT = re.compile(rf"{_NUMBER}(?:\s+(accept|re-reason|re-retrieve))?")
_REFERENCE = re.compile(r"#(\d+)")


class Malformed(ValueError):
    """A reply that is not in the form that was asked for; the message says what is wrong with it."""


@dataclass(frozen=True)
class Form:
    """How the replies of one set of prompts are read. Every function takes the text and raises Malformed.

    Attributes:
        end: what ends a reply of one line, where the form has such.
    """

    questions: Callable[[str, int], tuple[str, ...]]
    search: Callable[[str], str]
    verdict: Callable[[str, float], Verdict]
    answer_verdict: Callable[[str, float], Verdict]
    answer: Callable[[str], str]
    end: tuple[str, ...] = ()


def references(question: str) -> tuple[int, ...]:
    """Places (from 0) of the earlier questions whose answers a question needs."""
    return tuple(sorted({int(number) - 1 for number in _REFERENCE.findall(question)}))


def fill(question: str, answers: dict[int, str]) -> str:
    """A question with the answers that it needs in place of ``#n``."""
    return _REFERENCE.sub(lambda match: answers[int(match[1]) - 1], question)


def free_text(text: str) -> str:
    """Any text that is not empty."""
    if not (stripped := text.strip()):
        raise Malformed("it is empty")
    return stripped


def _questions(found: list[str], limit: int) -> tuple[str, ...]:
    if not 1 <= len(found) <= limit:
        raise Malformed(f"it has {len(found)} questions; 1 to {limit} are allowed")
    for place, question in enumerate(found):
        if not question.strip():
            raise Malformed(f"question {place + 1} is empty")
        if any(not 0 <= other < place for other in references(question)):
            raise Malformed(f"question {place + 1} needs the answer to one that does not come before it")
    if len(set(found)) != len(found):
        raise Malformed("a question is there twice")
    return tuple(question.strip() for question in found)


def _verdict(score: float, route: str, critique: str, threshold: float) -> Verdict:
    if (score >= threshold) != (route == "accept"):
        raise Malformed(f"score {score:.2f} and route {route!r} contradict each other at threshold {threshold:.2f}")
    return Verdict(score, route, critique)


# lines


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


def _one_line(text: str, what: str) -> str:
    lines = _lines(text)
    if len(lines) != 1:
        raise Malformed(f"it has {len(lines)} lines; one line with {what} is expected")
    return lines[0]


def _line_questions(text: str, limit: int) -> tuple[str, ...]:
    lines = [_BULLET.sub("", line) for line in _lines(text)]
    if wrong := next((line for line in lines if not line.endswith("?")), None):
        raise Malformed(f"the line {wrong[:40]!r} does not end with a question mark")
    return _questions(lines, limit)


def _line_verdict(text: str, threshold: float) -> Verdict:
    match = _VERDICT.fullmatch(_one_line(text, "a score and a route"))
    if match is None:
        raise Malformed("it is not a score from 0.0 to 1.0 followed by accept, re-reason or re-retrieve")
    score = float(match[1])
    if match[2] is None and score < threshold:
        raise Malformed(f"score {score:.2f} is below {threshold:.2f}, and no route is given")
    return _verdict(score, match[2] or "accept", "", threshold)


def _line_answer_verdict(text: str, threshold: float) -> Verdict:
    match = re.fullmatch(_NUMBER, _one_line(text, "a score"))
    if match is None:
        raise Malformed("it is not a score from 0.0 to 1.0")
    score = float(match[1])
    return Verdict(score, "accept" if score >= threshold else "re-reason", "")


# JSON


def _object(text: str, **types: type) -> dict[str, Any]:
    stripped = text.strip()
    fenced = _FENCE.fullmatch(stripped)
    try:
        document = json.loads(fenced[1] if fenced else stripped)
    except ValueError as error:
        raise Malformed(f"it is not one JSON object ({error})") from None
    if not isinstance(document, dict) or set(document) != set(types):
        raise Malformed(f"the object must have exactly the keys {', '.join(types)}")
    for name, wanted in types.items():
        value = document[name]
        number = wanted is float and type(value) in (int, float) and math.isfinite(value)
        if not number and type(value) is not wanted:
            raise Malformed(f"{name} is {type(value).__name__}; expected {wanted.__name__}")
    return document


def _score(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise Malformed(f"score is {value}; it must be 0 to 1")
    return float(value)


def _json_questions(text: str, limit: int) -> tuple[str, ...]:
    found = _object(text, questions=list)["questions"]
    if any(type(question) is not str for question in found):
        raise Malformed("questions must be strings")
    return _questions(found, limit)


def _json_verdict(text: str, threshold: float) -> Verdict:
    found = _object(text, score=float, route=str, critique=str)
    if found["route"] not in ("accept", "re-reason", "re-retrieve"):
        raise Malformed(f"route {found['route'][:40]!r} is unknown; choices: accept, re-reason, re-retrieve")
    return _verdict(_score(found["score"]), found["route"], found["critique"], threshold)


def _json_answer_verdict(text: str, threshold: float) -> Verdict:
    found = _object(text, score=float, critique=str)
    score = _score(found["score"])
    return Verdict(score, "accept" if score >= threshold else "re-reason", found["critique"])


FORMS = {
    "small": Form(
        _line_questions,
        lambda text: _one_line(text, "what to search for"),
        _line_verdict,
        _line_answer_verdict,
        free_text,
        ("\n",),
    ),
    "large": Form(
        _json_questions,
        lambda text: free_text(_object(text, search=str)["search"]),
        _json_verdict,
        _json_answer_verdict,
        lambda text: free_text(_object(text, answer=str)["answer"]),
    ),
}
