"""Joining the rankings of several searches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pss_engine.errors import ConfigError
from pss_engine.retrieval.passage import Hit

RRF_CONSTANT = 60


def rrf(rankings: Sequence[Sequence[Hit]], constant: float = RRF_CONSTANT, k: int | None = None) -> list[Hit]:
    """Reciprocal rank fusion: the score of a passage is the sum of ``1 / (constant + rank)`` over the rankings.

    Ranks count from 1; a passage that a ranking holds twice counts there once, at its better rank. The order of the
    rankings does not matter: sums are exactly rounded, equal scores are ordered by passage id.

    Args:
        rankings: hits, best first; their scores are not used.
        constant: 0 or more; a larger one weakens the lead of the first ranks.
        k: how many to keep; None keeps all.

    Raises:
        ConfigError: ``constant`` negative, or ``k`` below 1.
    """
    if not constant >= 0:
        raise ConfigError(f"rrf constant is {constant}; it must be 0 or more")
    if k is not None and k < 1:
        raise ConfigError(f"k is {k}; it must be 1 or more")
    shares: dict[str, list[float]] = {}
    for ranking in rankings:
        best_rank: dict[str, int] = {}
        for rank, hit in enumerate(ranking, start=1):
            best_rank.setdefault(hit.passage_id, rank)
        for passage_id, rank in best_rank.items():
            shares.setdefault(passage_id, []).append(1.0 / (constant + rank))
    fused = [Hit(passage_id, math.fsum(parts)) for passage_id, parts in shares.items()]
    return sorted(fused, key=lambda hit: (-hit.score, hit.passage_id))[:k]
