"""Joining the rankings of several searches."""

from __future__ import annotations

from collections.abc import Sequence

from pss_engine.errors import ConfigError
from pss_engine.ops.search import SHARE_BITS, rrf_shares
from pss_engine.retrieval.passage import Hit
from pss_engine.retrieval.search import Searcher, check_search

RRF_CONSTANT = 60


def rrf(
    rankings: Sequence[Sequence[Hit]],
    constant: float = RRF_CONSTANT,
    k: int | None = None,
    weights: Sequence[float] | None = None,
) -> list[Hit]:
    """Reciprocal rank fusion: the score of a passage is the sum of ``weight / (constant + rank)`` over the rankings.

    Ranks count from 1; a passage that a ranking holds twice counts there once, at its better rank. The order of the
    rankings does not matter: shares are integers in units of 2^-40, equal sums are ordered by passage id.

    Args:
        rankings: hits, best first; their scores are not used.
        constant: 0 or more; a larger one weakens the lead of the first ranks.
        k: how many to keep; None keeps all.
        weights: one for each ranking, 0 or more; None: all 1.

    Raises:
        ConfigError: ``constant`` or a weight negative, weights that are not as many as rankings, or ``k`` below 1.
    """
    _check_fusion(rankings, k, weights)
    if not constant >= 0:
        raise ConfigError(f"rrf constant is {constant}; it must be 0 or more")
    sums: dict[str, int] = {}
    for i, ranking in enumerate(rankings):
        shares = rrf_shares(len(ranking), constant, 1.0 if weights is None else weights[i])
        counted: set[str] = set()
        for hit, share in zip(ranking, shares, strict=True):
            if hit.passage_id not in counted:
                counted.add(hit.passage_id)
                sums[hit.passage_id] = sums.get(hit.passage_id, 0) + share
    return _best({passage_id: total * 2.0**-SHARE_BITS for passage_id, total in sums.items()}, k)


def weighted(rankings: Sequence[Sequence[Hit]], weights: Sequence[float], k: int | None = None) -> list[Hit]:
    """Weighted sum of scores that are stretched to 0 ... 1 within each ranking; a passage that is absent adds 0.

    A ranking whose scores are all equal gives 1 to each of its passages.

    Raises:
        ConfigError: a weight negative, weights that are not as many as rankings, or ``k`` below 1.
    """
    _check_fusion(rankings, k, weights)
    sums: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        best: dict[str, float] = {}
        for hit in ranking:
            best[hit.passage_id] = max(best.get(hit.passage_id, hit.score), hit.score)
        if not best:
            continue
        low, high = min(best.values()), max(best.values())
        for passage_id, score in best.items():
            share = (score - low) / (high - low) if high > low else 1.0
            sums[passage_id] = sums.get(passage_id, 0.0) + weight * share
    return _best(sums, k)


class Fused:
    """Several searches as one: each ranks ``depth`` passages, the rankings are fused.

    Args:
        searchers: any, over passages with the same ids.
        weights: one for each; None: all 1.
        method: ``rrf`` or ``weighted`` (by scores).
        depth: passages of each ranking; at least ``k`` are taken.
    """

    def __init__(
        self,
        searchers: Sequence[Searcher],
        weights: Sequence[float] | None = None,
        method: str = "rrf",
        depth: int = 50,
        constant: float = RRF_CONSTANT,
    ) -> None:
        if method not in ("rrf", "weighted"):
            raise ConfigError(f"fusion {method!r} is unknown; choices: rrf, weighted")
        self.searchers, self.method, self.depth, self.constant = searchers, method, depth, constant
        self.weights = [1.0] * len(searchers) if weights is None else list(weights)
        _check_fusion([[] for _ in searchers], None, self.weights)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        check_search(queries, k)
        found = [searcher.search(queries, max(k, self.depth)) for searcher in self.searchers]
        return [self._fuse([rankings[i] for rankings in found], k) for i in range(len(queries))]

    def _fuse(self, rankings: list[list[Hit]], k: int) -> list[Hit]:
        if self.method == "rrf":
            return rrf(rankings, self.constant, k, self.weights)
        return weighted(rankings, self.weights, k)


def record_wise(searcher: Searcher, query: str, records: Sequence[str], k: int, depth: int = 50) -> list[Hit]:
    """One search for each record of a session, with the query before it; the rankings are fused by ``rrf``."""
    if not records:
        return searcher.search([query], k)[0]
    return rrf(searcher.search([f"{query} {record}" for record in records], max(k, depth)), k=k)


def _check_fusion(rankings: Sequence[object], k: int | None, weights: Sequence[float] | None) -> None:
    if k is not None and k < 1:
        raise ConfigError(f"k is {k}; it must be 1 or more")
    if weights is None:
        return
    if len(weights) != len(rankings):
        raise ConfigError(f"{len(weights)} weights for {len(rankings)} rankings; give one for each")
    if bad := [weight for weight in weights if not 0 <= weight < float("inf")]:
        raise ConfigError(f"weight {bad[0]} is not a finite number of 0 or more")


def _best(scores: dict[str, float], k: int | None) -> list[Hit]:
    hits = [Hit(passage_id, score) for passage_id, score in scores.items()]
    return sorted(hits, key=lambda hit: (-hit.score, hit.passage_id))[:k]
