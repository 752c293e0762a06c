"""The Triton kernels of retrieve_topk under the interpreter: equal to the reference in every id, place and bit."""

from __future__ import annotations

import pytest
import torch

from pss_engine.ops import SparseSearch, retrieve_topk
from tests.ops.retrieval_cases import VECTORS, assert_same, dense_search, search, sparse_search

pytestmark = pytest.mark.usefixtures("interpreted", "small_blocks")


@pytest.fixture
def small_blocks(interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes its time for a sort."""
    from pss_engine.kernels import retrieve_topk as kernels

    monkeypatch.setattr(kernels, "BLOCK", 32)


@pytest.mark.parametrize("dtype", VECTORS, ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
def test_rankings_are_those_of_the_reference(dtype: torch.dtype, tied: bool) -> None:
    dense, sparse = dense_search(2, 70, 11, dtype, tied=tied), sparse_search(3, 70, tied=tied)
    arguments = search(dense, sparse, 70, num_groups=3, depth=7, k=5, masked=True)
    assert_same(retrieve_topk(*arguments, backend="triton"), retrieve_topk(*arguments, backend="torch"))


@pytest.mark.parametrize("depth", [1, 40])
def test_a_small_corpus_and_a_group_without_rankings(depth: int) -> None:
    arguments = search(dense_search(1, 3, 130, torch.int8), None, 3, num_groups=2, depth=depth, k=9)
    assert_same(retrieve_topk(*arguments, backend="triton"), retrieve_topk(*arguments, backend="torch"))


def test_unknown_words_find_nothing() -> None:
    known = sparse_search(2, 10)
    sparse = SparseSearch(
        known.terms[:0], torch.zeros(3, dtype=torch.int64), known.indptr, known.passages, known.weights
    )
    assert (retrieve_topk(*search(None, sparse, 10, num_groups=2), backend="triton").passages == -1).all()


def test_sums_of_long_vectors_round_as_fused_multiply_adds_do() -> None:
    arguments = search(dense_search(2, 40, 67, torch.float32), None, 40, num_groups=2, depth=40)
    assert_same(retrieve_topk(*arguments, backend="triton"), retrieve_topk(*arguments, backend="torch"))
