"""The multi-hop questions of ``multihop_qa.jsonl`` that say into which smaller questions they fall."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.suites import Skipped
from pss_engine.retrieval import BM25, Corpus, Passage

FILE = "multihop_qa.jsonl"
PASSAGES_A_PART = 2


@dataclass(frozen=True)
class Question:
    """A question, its parts (``#1`` stands for the answer to the first), and the paragraphs that are searched."""

    id: str
    text: str
    parts: tuple[str, ...]
    corpus: Corpus

    def part(self, at: int, answers: Sequence[str]) -> str:
        """A part with the answers so far filled in."""
        return re.sub(r"#(\d+)", lambda match: answers[int(match[1]) - 1], self.parts[at])

    def search(self, text: str) -> list[Passage]:
        """The best passages for a part of it."""
        (hits,) = BM25(self.corpus).search([text], PASSAGES_A_PART)
        return [self.corpus.by_id(hit.passage_id) for hit in hits]


def load(folder: Path, count: int) -> list[Question]:
    """The first ``count`` questions with parts. Raises Skipped where the file is not there."""
    path = folder / FILE
    if not path.is_file():
        raise Skipped(f"no {FILE} in the data folder; name one with --data FOLDER or PSS_DATA")
    rows = (json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip())
    return [
        Question(
            row["id"],
            row["question"],
            tuple(part["question"] for part in row["decomposition"]),
            Corpus(
                Passage(f"{row['id']}/{at}", paragraph["title"], paragraph["text"])
                for at, paragraph in enumerate(row["paragraphs"])
            ),
        )
        for row in rows
        if row.get("decomposition")
    ][:count]
