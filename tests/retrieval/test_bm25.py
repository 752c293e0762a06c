from __future__ import annotations

import math
import random
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.errors import ConfigError
from pss_engine.retrieval import BM25, Corpus, Hit, Passage
from pss_engine.retrieval.columns import map_columns, save_columns
from tests.tiny import tiny_tokenizer

WORDS = [f"w{i}" for i in range(30)]
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), min_size=1, max_size=25)


def test_scores_follow_the_formula() -> None:
    index = BM25(["heron heron egret", "egret", "slate slate slate slate"], k1=1.2, b=0.75)
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    expected = idf * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / (8 / 3)))
    [[hit]] = index.search(["heron"], k=3)
    assert hit.passage_id == "0" and hit.score == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("variant", ["lucene", "atire"])
@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4), (2.0, 1.0), (1.5, 0.0)])
def test_scores_equal_bm25s(variant: str, k1: float, b: float) -> None:
    draw = random.Random(91)
    documents = [draw.choices(WORDS, weights=range(1, 31), k=draw.randint(1, 40)) for _ in range(200)]
    peer = bm25s.BM25(method=variant, k1=k1, b=b, backend="numpy")
    peer.index(documents, show_progress=False)
    ours = BM25([" ".join(document) for document in documents], k1=k1, b=b, variant=variant, analyzer=str.split)
    for query in (["w29"], ["w0", "w7", "w28"], ["w3", "w3", "w11"], draw.choices(WORDS, k=9)):
        np.testing.assert_allclose(ours.scores(" ".join(query)), peer.get_scores(query), rtol=1e-5, atol=1e-6)


def test_the_lower_bound_of_bm25_plus_counts_for_terms_that_are_there() -> None:
    index = BM25(["heron heron egret", "egret", "slate"], variant="bm25+", delta=0.5)
    length = 1 - 0.75 + 0.75 * 3 / (5 / 3)
    heron = math.log(4 / 1) * (0.5 + 2 * 2.2 / (2 + 1.2 * length))
    egret = math.log(4 / 2) * (0.5 + 1 * 2.2 / (1 + 1.2 * length))
    assert index.scores("heron egret")[0] == pytest.approx(heron + egret, rel=1e-6)
    assert index.scores("heron")[1:].tolist() == [0, 0]


def test_the_index_follows_its_corpus_exactly() -> None:
    draw = random.Random(5)
    passages = [Passage(f"p{i:03}", "", " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))) for i in range(60)]
    corpus = Corpus(passages[:20])
    index, gone = BM25(corpus), set()
    for start in (20, 21, 40):
        corpus.add(passages[start : {20: 21, 21: 40, 40: 60}[start]])
        corpus.remove([passages[start - 3].id])
        gone.add(passages[start - 3].id)
        fresh = BM25(Corpus(list(corpus)))
        queries = [" ".join(draw.choices(WORDS, k=4)) for _ in range(8)]
        assert index.search(queries, 100) == fresh.search(queries, 100)
        assert not gone & {hit.passage_id for hits in index.search(queries, 100) for hit in hits}


def test_analyzers_by_name() -> None:
    texts = ["the pumps were running", "running pump"]
    assert [len(hits) for hits in BM25(texts).search(["pump", "runs"], 5)] == [1, 0]
    assert [len(hits) for hits in BM25(texts, analyzer="tokens", tokenizer=tiny_tokenizer()).search(["pu"], 5)] == [2]
    pytest.importorskip("Stemmer", reason="PyStemmer is not installed")
    assert [len(hits) for hits in BM25(texts, analyzer="stemmed").search(["pump", "runs"], 5)] == [2, 2]


@pytest.mark.parametrize("analyzer", ["word", "tokens"])
def test_a_saved_index_finds_the_same_and_can_grow(tmp_path: Path, analyzer: str) -> None:
    settings = {"analyzer": analyzer, "tokenizer": tiny_tokenizer(), "k1": 0.9}
    corpus = Corpus([Passage(str(i), "", text) for i, text in enumerate(["red pump", "blue pump ä", "valve"])])
    index = BM25(corpus, **settings)
    index.save(tmp_path)
    opened = BM25.open(tmp_path, corpus, **settings)
    assert opened.search(["pump ä", "red"], 3) == index.search(["pump ä", "red"], 3)
    corpus.add([Passage("new", "", "green pump")])
    assert opened.search(["green"], 1) == index.search(["green"], 1) != [[]]


def test_an_index_of_something_else_is_refused(tmp_path: Path) -> None:
    corpus = Corpus([Passage("a", "", "text")])
    BM25(corpus).save(tmp_path)
    with pytest.raises(ConfigError, match="is of analyzer word, tokens is in use"):
        BM25.open(tmp_path, corpus, analyzer="tokens", tokenizer=tiny_tokenizer())
    with pytest.raises(ConfigError, match=r"is of corpus .* build it again"):
        BM25.open(tmp_path, Corpus([Passage("b", "", "text")]))
    names = ("indptr", "rows", "counts", "lengths", "terms.bytes", "terms.lengths")
    mapped = map_columns(tmp_path / "bm25.safetensors", names)
    whole = {name: array.copy() for name, array in mapped.items()}  # the file under the map is about to shrink
    for name, values in (("indptr", [0, 9]), ("rows", [7]), ("counts", [1, 1])):
        damaged = {**whole, name: np.array(values, whole[name].dtype)}
        save_columns(tmp_path / "bm25.safetensors", damaged)
        with pytest.raises(ConfigError, match="is damaged: its postings are not those of 1 terms in 1 passages"):
            BM25.open(tmp_path, corpus)
    (tmp_path / "bm25.safetensors").write_bytes(b"short")
    with pytest.raises(ConfigError, match="index file"):
        BM25.open(tmp_path, corpus)


def test_whether_a_query_is_known_can_be_asked() -> None:
    corpus = Corpus([Passage("a", "", "red"), Passage("b", "", "blue")])
    index = BM25(corpus)
    assert index.knows("red alert") and not index.knows("unheard of")
    corpus.remove(["a"])
    assert not index.knows("red")


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
        ({"variant": "plus"}, "'plus' is unknown; choices: lucene, atire, bm25\\+"),
        ({"delta": -1}, "delta is -1"),
        ({"analyzer": "lemmas"}, "analyzer 'lemmas' is unknown; choices: word, stemmed, tokens"),
        ({"analyzer": "tokens"}, "needs the model's tokenizer"),
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
