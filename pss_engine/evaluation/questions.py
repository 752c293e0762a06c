"""Multi-hop questions with their own passages, as cells of one dataset each."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from pss_engine.errors import ConfigError
from pss_engine.retrieval import Passage


@dataclass(frozen=True)
class Question:
    """A question, its answers, and the passages given with it.

    Attributes:
        session: whose state gives the clues in the arm ``coa-pss``; empty = none.
        cell: the dataset that it comes from; questions of a cell share a difficulty profile.
        passages: ids begin with the question's id, so that a pool holds those of all questions.
    """

    id: str
    cell: str
    text: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]
    session: str = ""


def load_questions(path: Path, per_cell: int, seed: int) -> list[Question]:
    """``per_cell`` questions of each dataset in a JSONL file, drawn with a seed; all in order of their id.

    Lines: ``id``, ``source``, ``question``, ``answer``, ``paragraphs`` (``title``, ``text``), and where there are any
    ``answer_aliases`` and ``session``.

    Raises:
        ConfigError: no such file, a line that is no question, a question that is there twice, or a cell too small.
    """
    if per_cell < 1:
        raise ConfigError(f"{per_cell} questions a cell; at least 1 is needed")
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"questions {str(path)!r} cannot be read: {error.strerror}") from None
    cells: dict[str, list[Question]] = {}
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                question = _question(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path.name}, line {number}: no question: {error!r}") from None
            if question.id in seen:
                raise ConfigError(f"{path.name}, line {number}: question {question.id!r} is there twice")
            seen.add(question.id)
            cells.setdefault(question.cell, []).append(question)
    drawn: list[Question] = []
    for cell, questions in sorted(cells.items()):
        if len(questions) < per_cell:
            raise ConfigError(f"cell {cell!r} has {len(questions)} questions; {per_cell} were asked for")
        drawn += random.Random(f"{seed}/{cell}").sample(questions, per_cell)
    if not drawn:
        raise ConfigError(f"{path.name} holds no question")
    return sorted(drawn, key=lambda question: question.id)


def _question(row: dict[str, object]) -> Question:
    name, paragraphs, aliases = str(row["id"]), row["paragraphs"], row.get("answer_aliases", [])
    if not isinstance(paragraphs, list) or not isinstance(aliases, list):
        raise TypeError("paragraphs and answer_aliases must be lists")
    passages = [Passage(f"{name}/{at}", p["title"], p["text"]) for at, p in enumerate(paragraphs)]
    answers = tuple(str(answer) for answer in [row["answer"], *aliases])
    return Question(
        name, str(row["source"]), str(row["question"]), answers, tuple(passages), str(row.get("session", ""))
    )
