"""The unit of evidence, and what a search says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Hit(NamedTuple):
    """A passage that a search found, and its score (higher is better; comparable within one search only)."""

    passage_id: str
    score: float


@dataclass(frozen=True)
class Passage:
    """A unit of evidence.

    Attributes:
        id: unique in its corpus; ``doc`` for a whole document, ``doc#0``, ``doc#1``, ... for its chunks.
        title: title of the document.
        text: the evidence, an exact slice of the document's text.
        doc_id: the document it comes from; the passage's own id where none is given.
        start: first character of the slice in the document's text.
    """

    id: str
    title: str
    text: str
    doc_id: str = ""
    start: int = 0

    def __post_init__(self) -> None:
        if not self.doc_id:
            object.__setattr__(self, "doc_id", self.id)

    @property
    def rendered(self) -> str:
        """Title and text, as they are indexed, embedded, tokenised and read by the answering model."""
        return f"{self.title}\n{self.text}"
