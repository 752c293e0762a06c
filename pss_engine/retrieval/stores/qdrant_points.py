"""What both Qdrants have in common: ids as UUIDs, and rankings whose ties are settled here."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from pss_engine.retrieval.passage import Hit

_NAMESPACE = uuid.UUID("5b0b4c3e-6d5f-5e5b-9d38-1f1f6a1c8b11")
PAYLOAD = "passage_id"
SLACK = 16

Fetch = Callable[[int], list[Hit]]
"""The so many best points of one query."""


def point_id(passage_id: str) -> str:
    """Qdrant takes numbers and UUIDs only."""
    return str(uuid.uuid5(_NAMESPACE, passage_id))


def settled(first: Sequence[Hit], asked: int, k: int, fetch: Fetch) -> list[Hit]:
    """The ``k`` best in our order. Qdrant leaves equal scores in any order, so all that tie with the k-th are needed.

    Args:
        first: what a request for ``asked`` points, more than ``k``, has returned.
    """
    hits = list(first)
    while len(hits) == asked and hits[-1].score == hits[k - 1].score:
        asked *= 4
        hits = fetch(asked)
    return sorted(hits, key=lambda hit: (-hit.score, hit.passage_id))[:k]
