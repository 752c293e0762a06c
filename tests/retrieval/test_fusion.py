from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.errors import ConfigError
from pss_engine.retrieval import Hit, rrf

rankings = st.lists(
    st.lists(st.sampled_from("abcdefgh"), unique=True).map(lambda ids: [Hit(i, 1.0) for i in ids]), max_size=6
)


def ranking(ids: str) -> list[Hit]:
    return [Hit(passage_id, 0.0) for passage_id in ids]


def test_scores_are_sums_of_reciprocal_ranks() -> None:
    fused = rrf([ranking("ab"), ranking("bc")])
    assert [hit.passage_id for hit in fused] == ["b", "a", "c"]
    assert [hit.score for hit in fused] == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62])


def test_ties_are_ordered_by_id() -> None:
    assert [hit.passage_id for hit in rrf([ranking("ba"), ranking("ab")])] == ["a", "b"]


@given(rankings, st.randoms(use_true_random=False))
def test_the_order_of_the_rankings_does_not_matter(lists: list[list[Hit]], shuffle: random.Random) -> None:
    assert rrf(lists) == rrf(shuffle.sample(lists, len(lists)))


@given(rankings)
def test_every_passage_appears_once_and_scores_fall(lists: list[list[Hit]]) -> None:
    fused = rrf(lists)
    assert {hit.passage_id for hit in fused} == {hit.passage_id for hits in lists for hit in hits}
    assert len({hit.passage_id for hit in fused}) == len(fused)
    assert [hit.score for hit in fused] == sorted((hit.score for hit in fused), reverse=True)


@given(rankings, st.integers(1, 10))
def test_k_keeps_the_head(lists: list[list[Hit]], k: int) -> None:
    assert rrf(lists, k=k) == rrf(lists)[:k]


@given(rankings.map(lambda lists: lists[:1]))
def test_one_ranking_keeps_its_order(lists: list[list[Hit]]) -> None:
    assert [hit.passage_id for hit in rrf(lists)] == [hit.passage_id for hits in lists for hit in hits]


def test_a_passage_held_twice_counts_at_its_better_rank() -> None:
    assert rrf([ranking("aba")], constant=0) == [Hit("a", 1.0), Hit("b", 0.5)]


@pytest.mark.parametrize(("constant", "k", "message"), [(-1, 4, "constant is -1"), (60, 0, "k is 0")])
def test_wrong_parameters_are_refused(constant: int, k: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rrf([ranking("a")], constant=constant, k=k)
