"""retrieve_topk: what its formulas say, written out in plain Python, and every backend equal to the reference."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.errors import ConfigError
from pss_engine.ops import DenseSearch, SparseSearch, retrieve_topk, rrf_shares
from tests.ops.isas import each_isa, running, with_threads
from tests.ops.retrieval_cases import VECTORS, assert_same, dense_search, search, sparse_search

BACKENDS = retrieve_topk.backends("cpu")
needs_cpp = pytest.mark.skipif("cpp" not in BACKENDS, reason="no compiled kernel")


def plain_scores(search: DenseSearch | SparseSearch, query: int, num_passages: int) -> list[np.float32]:
    """Scores by exact fractions and one rounding a step."""
    scores = [np.float32(0)] * num_passages
    if isinstance(search, SparseSearch):
        for term in search.terms[search.starts[query] : search.starts[query + 1]].tolist():
            for place in range(int(search.indptr[term]), int(search.indptr[term + 1])):
                passage = int(search.passages[place])
                scores[passage] = np.float32(scores[passage] + np.float32(search.weights[place].item()))
        return scores
    for passage in range(num_passages):
        pairs = zip(search.queries[query].tolist(), search.vectors[passage].tolist(), strict=True)
        if search.scales is not None:
            scores[passage] = np.float32(sum(q * v for q, v in pairs)) * np.float32(search.scales[passage].item())
            continue
        total = np.float32(0)
        for q, v in pairs:
            total = nearest(Fraction(q) * Fraction(v) + Fraction(float(total)))
        scores[passage] = total
    return scores


def nearest(exact: Fraction) -> np.float32:
    """The float32 nearest to a fraction, ties to even."""
    near = np.float32(float(exact))
    candidates = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.uint32)) & 1))


def plain(arguments: tuple[Any, ...]) -> tuple[list[list[int]], list[list[tuple[int, np.float32]]]]:
    """The fused and the single rankings, by sorting everything."""
    ranks, dense, sparse, groups, shares, masks, mask_ids, k = arguments
    depth, rankings = shares.shape[1], []
    sources = [(dense, b) for b in range(len(dense.queries))] if dense else []
    sources += [(sparse, b) for b in range(sparse.num_queries)] if sparse else []
    fused: list[dict[int, int]] = [{} for _ in mask_ids]
    for row, (source, query) in enumerate(sources):
        group = int(groups[row])
        scores = plain_scores(source, query, len(ranks))
        mask = int(mask_ids[group])
        found = [
            n
            for n in range(len(ranks))
            if (mask < 0 or masks[mask, n]) and (isinstance(source, DenseSearch) or scores[n] > 0)
        ]
        found = sorted(found, key=lambda n: (-scores[n], int(ranks[n])))[:depth]
        rankings.append([(n, scores[n]) for n in found])
        for place, n in enumerate(found):
            fused[group][n] = fused[group].get(n, 0) + int(shares[row, place])
    return [sorted(sums, key=lambda n: (-sums[n], int(ranks[n])))[:k] for sums in fused], rankings


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", VECTORS, ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
def test_rankings_follow_the_formulas(backend: str, dtype: torch.dtype, tied: bool) -> None:
    dense = dense_search(3, 29, 11, dtype, tied=tied)
    arguments = search(dense, sparse_search(4, 29, tied=tied), 29, num_groups=3, depth=7, k=5, masked=True)
    found = retrieve_topk(*arguments, backend=backend)
    fused, rankings = plain(arguments)
    for row, ranking in enumerate(rankings):
        filled = [n for n, _ in ranking] + [-1] * (7 - len(ranking))
        assert found.list_passages[row].tolist() == filled
        assert found.list_scores[row, : len(ranking)].tolist() == [float(score) for _, score in ranking]
    assert found.passages.tolist() == [row + [-1] * (5 - len(row)) for row in fused]


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 5), st.integers(1, 70), st.booleans(), st.randoms())
def test_backends_agree_in_every_bit(
    num_passages: int, num_dense: int, num_sparse: int, depth: int, tied: bool, draw: Any
) -> None:
    seed, size, dtype = draw.randrange(10**6), draw.randrange(1, 70), draw.choice(VECTORS)
    dense = dense_search(num_dense, num_passages, size, dtype, seed, tied)
    sparse = sparse_search(num_sparse, num_passages, seed=seed, tied=tied) if num_sparse else None
    arguments = search(
        dense,
        sparse,
        num_passages,
        num_groups=1 + seed % 4,
        depth=depth,
        k=1 + seed % 9,
        masked=seed % 2 > 0,
        seed=seed,
    )
    expected = retrieve_topk(*arguments, backend="torch")
    for backend in BACKENDS:
        assert_same(retrieve_topk(*arguments, backend=backend), expected)


@needs_cpp
@each_isa
@pytest.mark.parametrize("num_queries", [1, 2, 3, 7, 16, 33, 133])
@pytest.mark.parametrize("dtype", VECTORS, ids=str)
def test_every_instruction_set_and_thread_count(isa: str, num_queries: int, dtype: torch.dtype) -> None:
    num_passages = 700
    dense = dense_search(num_queries, num_passages, 67, dtype)
    sparse = sparse_search(num_queries, num_passages, tied=True)
    arguments = search(dense, sparse, num_passages, num_groups=num_queries, masked=True)
    expected = retrieve_topk(*arguments, backend="torch")
    with running(isa):
        for threads in (1, 2, 3):
            found = with_threads(threads, lambda: retrieve_topk(*arguments, backend="cpp"))  # type: ignore[arg-type]
            assert_same(found, expected)


@needs_cpp
@each_isa
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16], ids=str)
def test_many_passages_of_the_usual_size(isa: str, dtype: torch.dtype) -> None:
    num_passages = 20_000
    dense, sparse = dense_search(9, num_passages, 384, dtype), sparse_search(9, num_passages)
    arguments = search(dense, sparse, num_passages, num_groups=9, depth=50, k=10)
    with running(isa):
        assert_same(retrieve_topk(*arguments, backend="cpp"), retrieve_topk(*arguments, backend="torch"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_int8_values_are_summed_exactly(backend: str) -> None:
    vectors = torch.full((3, 1000), -128, dtype=torch.int8)
    vectors[1], vectors[2, ::2] = 127, 127
    dense = DenseSearch(vectors[:1].clone(), vectors, torch.ones(3))
    found = retrieve_topk(*search(dense, None, 3, depth=3), backend=backend)
    assert found.list_scores.tolist() == [[128 * 128 * 1000, 500 * 128, -128 * 127 * 1000]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_k_and_depth_may_exceed_the_corpus(backend: str) -> None:
    arguments = search(dense_search(1, 3, 8, torch.float32), None, 3, depth=9, k=12)
    found = retrieve_topk(*arguments, backend=backend)
    assert sorted(found.passages[0, :3].tolist()) == [0, 1, 2]
    assert found.passages[0, 3:].tolist() == [-1] * 9 and found.list_passages[0, 3:].tolist() == [-1] * 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_group_of_unknown_words_finds_nothing(backend: str) -> None:
    sparse = sparse_search(2, 10)
    sparse = SparseSearch(
        sparse.terms[:0], torch.zeros(3, dtype=torch.int64), sparse.indptr, sparse.passages, sparse.weights
    )
    assert (retrieve_topk(*search(None, sparse, 10, num_groups=2), backend=backend).passages == -1).all()


def test_shares_are_reciprocal_ranks() -> None:
    assert rrf_shares(2, constant=0) == [2**40, 2**39]
    assert rrf_shares(1, constant=60, weight=2.0) == [round(2**41 / 61)]


def change(arguments: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*arguments[:place], value, *arguments[place + 1 :])


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_outside_the_contract_are_refused(backend: str) -> None:
    dense, sparse = dense_search(2, 5, 8, torch.int8), sparse_search(2, 5)
    good = search(dense, sparse, 5)
    wrong_terms = SparseSearch(sparse.terms + 100, sparse.starts, sparse.indptr, sparse.passages, sparse.weights)
    late = SparseSearch(sparse.terms, sparse.starts + 1, sparse.indptr, sparse.passages, sparse.weights)
    beyond = SparseSearch(sparse.terms, sparse.starts, sparse.indptr + 10**6, sparse.passages, sparse.weights)
    for place, value, message in (
        (2, late, "starts.* must rise from 0 to"),
        (2, beyond, "has the postings 10"),
        (0, good[0].long(), "tensors do not fit"),
        (1, DenseSearch(dense.queries.float(), dense.vectors, dense.scales), "dense tensors do not fit"),
        (1, DenseSearch(dense.queries, dense.vectors), "dense tensors do not fit"),
        (2, wrong_terms, r"terms\[0\] = 1"),
        (3, good[3] + 1, r"groups\[0\] = 1, must be 0 to 0"),
        (4, good[4][:, :0], "1 to 1024"),
        (6, good[6] + 1, r"mask_ids\[0\] = 0, must be -1 to -1"),
        (7, 0, "k is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            retrieve_topk(*change(good, place, value), backend=backend)
    with pytest.raises(ConfigError, match="nothing to search with"):
        retrieve_topk(*change(change(good, 1, None), 2, None), backend=backend)
