"""The one interface of all searches, and the step from texts to the op and back to ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops import DenseSearch, Retrieved, SparseSearch, retrieve_topk, rrf_shares
from pss_engine.ops.search import MAX_DEPTH
from pss_engine.retrieval.corpus import Corpus
from pss_engine.retrieval.passage import Hit


class Searcher(Protocol):
    """What every search offers: deterministic, batched, best first, equal scores in order of passage id."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The at most ``k`` best passages of each query. Raises ConfigError for ``k`` below 1 or a single string."""
        ...


def check_search(queries: Sequence[str], k: int) -> None:
    """Raises ConfigError for ``k`` below 1, or a single string in place of the list of queries."""
    if isinstance(queries, str):
        raise ConfigError("search takes a list of queries, got one string")
    if k < 1:
        raise ConfigError(f"k is {k}; it must be 1 or more")


def ranked(
    corpus: Corpus, dense: DenseSearch | None, sparse: SparseSearch | None, k: int, masks: Tensor | None = None
) -> Retrieved:
    """Every query as a ranking of its own; nothing is fused. ``masks`` as in the op, with one row for all queries."""
    num_lists = (0 if dense is None else len(dense.queries)) + (0 if sparse is None else sparse.num_queries)
    depth = min(k, corpus.num_rows)
    if depth > MAX_DEPTH:
        raise ConfigError(f"k is {k}; a ranking holds at most {MAX_DEPTH} passages")
    shares = shares_of(depth, 60.0, (1.0,), num_lists)
    mask_ids = torch.full((num_lists,), -1 if masks is None else 0, dtype=torch.int32)
    groups = torch.arange(num_lists, dtype=torch.int32)
    found: Retrieved = retrieve_topk(ranks_of(corpus), dense, sparse, groups, shares, masks, mask_ids, 1)
    return found


@lru_cache(maxsize=256)
def shares_of(depth: int, constant: float, weights: tuple[float, ...], num_lists: int) -> Tensor:
    """[len(weights) * num_lists, depth]: ``rrf_shares`` of each weight, ``num_lists`` times. Not to be written to."""
    return torch.tensor([rrf_shares(depth, constant, weight) for weight in weights]).repeat_interleave(num_lists, 0)


def hits_of(corpus: Corpus, rows: Tensor, scores: Tensor) -> list[list[Hit]]:
    """Rankings as passage ids; places that are not filled are left out."""
    return [
        [
            Hit(passage_id, score)
            for passage_id, score in zip(corpus.ids(r for r in row if r >= 0), values, strict=False)
        ]
        for row, values in zip(rows.tolist(), scores.tolist(), strict=True)
    ]


def ranks_of(corpus: Corpus) -> Tensor:
    return torch.from_numpy(corpus.ranks)


def present_mask(corpus: Corpus) -> Tensor | None:
    """[1, rows] for the op; None where no passage was removed."""
    present = corpus.present
    return None if present.all() else torch.from_numpy(present[None])


def starts_of(lengths: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]))
