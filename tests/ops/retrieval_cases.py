"""Searches for the tests of ``retrieve_topk``: every kind of vector, postings, masks and many equal scores."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from pss_engine.ops import DenseSearch, Retrieved, SparseSearch, rrf_shares

VECTORS = (torch.int8, torch.float16, torch.bfloat16, torch.float32)
NUM_TERMS = 40


def dense_search(
    num_queries: int, num_passages: int, size: int, dtype: torch.dtype, seed: int = 0, tied: bool = False
) -> DenseSearch:
    """Random vectors; ``tied``: of few different values, so that most scores occur more than once."""
    draw = torch.Generator().manual_seed(seed)
    if dtype == torch.int8:
        high = 2 if tied else 127
        queries, vectors = (
            torch.randint(-high, high + 1, (rows, size), generator=draw).to(torch.int8)
            for rows in (num_queries, num_passages)
        )
        scales = torch.ones(num_passages) if tied else torch.rand(num_passages, generator=draw) + 0.01
        return DenseSearch(queries, vectors, scales)
    queries, vectors = (torch.randn(rows, size, generator=draw) for rows in (num_queries, num_passages))
    if tied:
        queries, vectors = queries.round(), vectors.round()
    return DenseSearch(queries, vectors.to(dtype))


def sparse_search(
    num_queries: int, num_passages: int, max_terms: int = 6, seed: int = 0, tied: bool = False
) -> SparseSearch:
    """Term v is in about 1 of v + 1 passages; a query may repeat a term or have none."""
    draw = torch.Generator().manual_seed(seed + 1)
    rows, weights, indptr = [], [], [0]
    for term in range(NUM_TERMS):
        held = (torch.rand(num_passages, generator=draw) < 1 / (term + 1)).nonzero().squeeze(1)
        rows.append(held)
        drawn = torch.rand(len(held), generator=draw)
        weights.append((drawn * 3).ceil() if tied else drawn * 9)
        indptr.append(indptr[-1] + len(held))
    counts = torch.randint(0, max_terms + 1, (num_queries,), generator=draw)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    terms = torch.randint(0, NUM_TERMS, (int(starts[-1]),), generator=draw).int()
    return SparseSearch(terms, starts, torch.tensor(indptr), torch.cat(rows).int(), torch.cat(weights).float())


def search(
    dense: DenseSearch | None,
    sparse: SparseSearch | None,
    num_passages: int,
    *,
    num_groups: int = 1,
    depth: int = 10,
    k: int = 4,
    masked: bool = False,
    seed: int = 0,
) -> tuple[Any, ...]:
    """Arguments of the op: shuffled ranks, rankings dealt to the groups in turn, a mask for every other group."""
    draw = torch.Generator().manual_seed(seed + 2)
    num_lists = (0 if dense is None else len(dense.queries)) + (0 if sparse is None else sparse.num_queries)
    ranks = torch.randperm(num_passages, generator=draw).int()
    groups = (torch.arange(num_lists) % num_groups).int()
    shares = torch.tensor([rrf_shares(depth)]).expand(num_lists, depth).contiguous()
    masks = torch.rand(2, num_passages, generator=draw) < 0.5 if masked else None
    mask_ids = torch.tensor([index % 3 - 1 if masked else -1 for index in range(num_groups)]).int()
    return ranks, dense, sparse, groups, shares, masks, mask_ids, k


def on(device: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments on another device."""

    def moved(value: Any) -> Any:
        if isinstance(value, (DenseSearch, SparseSearch)):
            return type(value)(*(moved(getattr(value, field.name)) for field in fields(value)))
        return value.to(device) if isinstance(value, Tensor) else value

    return tuple(map(moved, arguments))


def assert_same(found: Retrieved, expected: Retrieved) -> None:
    """In every id, place and bit."""
    for name in Retrieved._fields:
        ours: Tensor = getattr(found, name).cpu()
        theirs: Tensor = getattr(expected, name).cpu()
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), name
