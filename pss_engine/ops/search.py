"""What a search takes and returns, and what is checked before every backend of ``retrieve_topk``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops.contract import misfit, needs_gradient

SHARE_BITS = 40
"""A share of reciprocal rank fusion is an integer in units of ``2**-40``: sums are exact in any order."""

MAX_DEPTH = 1024
MAX_DIM = 2**16
"""Sums of products of int8 stay in int32."""


@dataclass(frozen=True, eq=False)
class DenseSearch:
    """Queries by their vectors, and the vectors of all passages; H is at most ``MAX_DIM``.

    Attributes:
        queries: [B, H] float32, or int8 where ``vectors`` is.
        vectors: [N, H] float32, float16, bfloat16 or int8.
        scales: [N] float32 above 0 for int8 vectors, which stand for ``vectors[n] * scales[n]``; else None.
    """

    queries: Tensor
    vectors: Tensor
    scales: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SparseSearch:
    """Queries by their terms, and the postings of all V terms.

    Attributes:
        terms: [T] int32, 0 to V - 1: the terms of all queries, one query after the other.
        starts: [B + 1] int64: query b has ``terms[starts[b]:starts[b + 1]]``.
        indptr: [V + 1] int64: term v has the postings ``indptr[v]`` up to ``indptr[v + 1]``.
        passages: [number of postings] int32, 0 to N - 1, ascending within a term; not checked again at every search.
        weights: [number of postings] float32, 0 or more: what the term adds to the passage's score.
    """

    terms: Tensor
    starts: Tensor
    indptr: Tensor
    passages: Tensor
    weights: Tensor

    @property
    def num_queries(self) -> int:
        return len(self.starts) - 1


class Retrieved(NamedTuple):
    """What a search found. A place that no passage fills holds passage -1 and 0.

    Attributes:
        passages: [G, k] int32: the best of each group, best first.
        shares: [G, k] int64: their fused scores, in units of ``2**-SHARE_BITS``.
        list_passages: [L, depth] int32: the ranking of each query by itself; dense queries first, then sparse ones.
        list_scores: [L, depth] float32.
    """

    passages: Tensor
    shares: Tensor
    list_passages: Tensor
    list_scores: Tensor


def rrf_shares(depth: int, constant: float = 60.0, weight: float = 1.0) -> list[int]:
    """What rank 1, 2, ... ``depth`` of a ranking adds to a passage's fused score: ``weight / (constant + rank)``."""
    return [round(weight * 2**SHARE_BITS / (constant + rank)) for rank in range(1, depth + 1)]


def check_ranges(
    dense: DenseSearch | None,
    sparse: SparseSearch | None,
    groups: Tensor,
    masks: Tensor | None,
    mask_ids: Tensor,
    num_passages: int,
) -> None:
    if groups.device.type != "cpu":
        return
    _check_range("groups", groups, len(mask_ids))
    _check_range("mask_ids", mask_ids, 0 if masks is None else len(masks), low=-1)
    if sparse is not None:
        _check_range("terms", sparse.terms, len(sparse.indptr) - 1)
        _check_spans(sparse)


def _check_spans(sparse: SparseSearch) -> None:
    starts = sparse.starts.tolist()
    if starts[0] != 0 or starts[-1] != len(sparse.terms) or starts != sorted(starts):
        raise ConfigError(f"retrieve_topk: starts {starts} must rise from 0 to {len(sparse.terms)}")
    for term in sparse.terms.unique().tolist():
        first, end = sparse.indptr[term : term + 2].tolist()
        if not 0 <= first <= end <= len(sparse.passages):
            raise ConfigError(f"retrieve_topk: term {term} has the postings {first} to {end} of {len(sparse.passages)}")


def _check_range(name: str, values: Tensor, end: int, low: int = 0) -> None:
    outside = ((values < low) | (values >= end)).nonzero()
    if outside.numel():
        index = int(outside[0])
        raise ConfigError(f"retrieve_topk: {name}[{index}] = {int(values[index])}, must be {low} to {end - 1}")


def check_search(
    ranks: Tensor,
    dense: DenseSearch | None,
    sparse: SparseSearch | None,
    groups: Tensor,
    shares: Tensor,
    masks: Tensor | None,
    mask_ids: Tensor,
    k: int,
) -> None:
    if dense is None and sparse is None:
        raise ConfigError("retrieve_topk: there is nothing to search with; give dense, sparse or both")
    if k < 1:
        raise ConfigError(f"retrieve_topk: k is {k}; it must be 1 or more")
    tensors = {"ranks": ranks, "groups": groups, "shares": shares, "mask_ids": mask_ids}
    num_lists, num_passages = 0, len(ranks)
    if masks is not None:
        tensors["masks"] = masks
    if dense is not None:
        tensors |= {"queries": dense.queries, "vectors": dense.vectors}
        if dense.scales is not None:
            tensors["scales"] = dense.scales
        _check_dense(dense, num_passages)
        num_lists += len(dense.queries)
    if sparse is not None:
        names = ("terms", "starts", "indptr", "passages", "weights")
        tensors |= {name: getattr(sparse, name) for name in names}
        num_lists += sparse.num_queries
    if not (
        ranks.dim() == groups.dim() == mask_ids.dim() == 1
        and groups.shape == (num_lists,)
        and shares.dim() == 2
        and shares.shape[0] == num_lists
        and 1 <= shares.shape[1] <= MAX_DEPTH
        and (masks is None or (masks.dim() == 2 and masks.shape[1] == num_passages and masks.dtype == torch.bool))
        and ranks.dtype == groups.dtype == mask_ids.dtype == torch.int32
        and shares.dtype == torch.int64
        and (sparse is None or _sparse_fits(sparse))
    ):
        expected = (
            f"[N] int32, [L] int32, [L, 1 to {MAX_DEPTH}] int64, [G] int32, [M, N] bool or None; sparse: [T] int32, "
            "[B + 1] int64, [V + 1] int64, [P] int32, [P] float32"
        )
        found = {name: f"{list(t.shape)} {t.dtype}" for name, t in tensors.items()}
        raise misfit("retrieve_topk", "tensors", found, expected)
    if not all(t.is_contiguous() and t.device == ranks.device for t in tensors.values()):
        where = {name: f"{t.stride()} {t.device}" for name, t in tensors.items()}
        raise misfit("retrieve_topk", "layouts", where, "contiguous, on one device")


def _check_dense(dense: DenseSearch, num_passages: int) -> None:
    queries, vectors, scales = dense.queries, dense.vectors, dense.scales
    is_int8 = vectors.dtype == torch.int8
    if not (
        queries.dim() == vectors.dim() == 2
        and vectors.shape == (num_passages, queries.shape[1])
        and vectors.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int8)
        and queries.dtype == (torch.int8 if is_int8 else torch.float32)
        and queries.shape[1] <= MAX_DIM
        and (scales is not None) == is_int8
        and (scales is None or (scales.shape == (num_passages,) and scales.dtype == torch.float32))
        and not needs_gradient(queries, vectors)
    ):
        found = {
            "queries": f"{list(queries.shape)} {queries.dtype}",
            "vectors": f"{list(vectors.shape)} {vectors.dtype}",
        }
        found["scales"] = "None" if scales is None else f"{list(scales.shape)} {scales.dtype}"
        expected = (
            f"[B, H] float32 with [{num_passages}, H] floats and None, or both int8 with [{num_passages}] float32"
        )
        raise misfit("retrieve_topk", "dense tensors", found, expected + "; no gradient")


def _sparse_fits(sparse: SparseSearch) -> bool:
    return (
        all(t.dim() == 1 for t in (sparse.terms, sparse.starts, sparse.indptr, sparse.passages, sparse.weights))
        and len(sparse.starts) >= 1
        and len(sparse.indptr) >= 1
        and sparse.passages.shape == sparse.weights.shape
        and sparse.terms.dtype == sparse.passages.dtype == torch.int32
        and sparse.starts.dtype == sparse.indptr.dtype == torch.int64
        and sparse.weights.dtype == torch.float32
    )
