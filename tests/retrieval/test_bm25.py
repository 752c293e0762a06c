from __future__ import annotations

import math
import random

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.errors import ConfigError
from pss_engine.retrieval import BM25, Corpus, Hit, Passage

WORDS = [f"w{i}" for i in range(30)]
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), min_size=1, max_size=25)


def test_scores_follow_the_formula() -> None:
    index = BM25(["heron heron egret", "egret", "slate slate slate slate"], k1=1.2, b=0.75)
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    expected = idf * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / (8 / 3)))
    [[hit]] = index.search(["heron"], k=3)
    assert hit.passage_id == "0" and hit.score == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4), (2.0, 1.0), (1.5, 0.0)])
def test_scores_equal_bm25s(k1: float, b: float) -> None:
    draw = random.Random(91)
    documents = [draw.choices(WORDS, weights=range(1, 31), k=draw.randint(1, 40)) for _ in range(200)]
    peer = bm25s.BM25(method="lucene", k1=k1, b=b, backend="numpy")
    peer.index(documents, show_progress=False)
    ours = BM25([" ".join(document) for document in documents], k1=k1, b=b, analyzer=str.split)
    for query in (["w29"], ["w0", "w7", "w28"], ["w3", "w3", "w11"], draw.choices(WORDS, k=9)):
        np.testing.assert_allclose(ours.scores(" ".join(query)), peer.get_scores(query), rtol=1e-5, atol=1e-6)


@given(texts, st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), max_size=4), st.integers(1, 30))
def test_search_is_the_sorted_head_of_the_positive_scores(documents: list[str], queries: list[str], k: int) -> None:
    index = BM25(documents)
    for query, hits in zip(queries, index.search(queries, k), strict=True):
        positive = [Hit(str(i), float(score)) for i, score in enumerate(index.scores(query)) if score > 0]
        assert hits == sorted(positive, key=lambda hit: (-hit.score, hit.passage_id))[:k]
        assert {hit.passage_id for hit in positive} == {
            str(i) for i, text in enumerate(documents) if set(text.split()) & set(query.split())
        }


@given(texts, st.randoms(use_true_random=False))
def test_the_order_of_the_passages_does_not_change_the_ranking(documents: list[str], shuffle: random.Random) -> None:
    passages = [Passage(f"p{i}", "", text or "-") for i, text in enumerate(documents)]
    shuffled = shuffle.sample(passages, len(passages))
    assert BM25(Corpus(passages)).search(WORDS[:5], 5) == BM25(Corpus(shuffled)).search(WORDS[:5], 5)


def test_ties_are_ordered_by_id_at_the_cut_too() -> None:
    corpus = Corpus([Passage(passage_id, "", "same words here") for passage_id in ("d", "b", "c", "a")])
    assert [hit.passage_id for hit in BM25(corpus).search(["words"], k=2)[0]] == ["a", "b"]


def test_the_title_is_searched_with_the_text() -> None:
    corpus = Corpus([Passage("a", "Tide table", "hours and heights"), Passage("b", "Menu", "soup")])
    assert [hit.passage_id for hit in BM25(corpus).search(["tide"], k=2)[0]] == ["a"]


def test_an_identifier_ranks_above_its_siblings_and_survives_a_wrong_digit() -> None:
    index = BM25(["checkpoint egret-12 is loaded", "checkpoint egret-9 is loaded", "checkpoint slate-12 is loaded"])
    exact, wrong_digit = index.search(["egret-12", "egret-13"], k=3)
    assert exact[0].passage_id == "0" and exact[0].score > exact[1].score
    assert {hit.passage_id for hit in wrong_digit} == {"0", "1"}


def test_a_query_without_known_terms_finds_nothing() -> None:
    assert BM25(["some text"]).search(["", "the", "unheard"], k=4) == [[], [], []]


def test_texts_without_a_term_can_be_indexed() -> None:
    assert BM25(["", "--"]).search(["word"], k=1) == [[]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "plus"}, "'plus' is unknown; choices: lucene"),
        ({"k1": -0.1}, "k1 is -0.1"),
        ({"k1": math.nan}, "k1 is nan"),
        ({"b": 1.5}, "b is 1.5"),
    ],
)
def test_parameters_out_of_range_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BM25(["text"], **arguments)  # type: ignore[arg-type]


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one text"):
        BM25([])
    with pytest.raises(ConfigError, match="k is 0"):
        BM25(["text"]).search(["text"], k=0)
    with pytest.raises(ConfigError, match="list of queries"):
        BM25(["text"]).search("text", k=1)
