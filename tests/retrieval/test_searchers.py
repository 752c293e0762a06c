"""One contract for all searches, whatever is behind them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pss_engine.errors import ConfigError
from pss_engine.retrieval import BM25, Corpus, Dense, Fused, Hybrid, Passage, Searcher
from pss_engine.retrieval.graph import Graph
from pss_engine.retrieval.stores import MemoryStore, StoreSearch
from pss_engine.retrieval.summary_leaf import SummaryLeaf
from pss_engine.retrieval.transforms import RQ, HyDE, MeanVector, Transformed
from pss_engine.retrieval.tree import Tree
from tests.retrieval.encoders import tiny_encoder

DRAW = random.Random(17)
NAMES = ["Heron", "Egret", "Slate", "Kestrel-7b", "Osprey", "Basalt", "Flint"]
WORDS = ["pump", "valve", "route", "checkpoint", "runs", "failed", "north", "south"]


def passages() -> list[Passage]:
    made = [
        Passage(
            f"d{i % 12}#{i}",
            f"Unit {i % 12}",
            " ".join([*DRAW.choices(NAMES, k=2), *DRAW.choices(WORDS, k=5)]),
            f"d{i % 12}",
        )
        for i in range(40)
    ]
    same = [Passage(f"same-{letter}", "Twin", "Heron pump Basalt north", f"same-{letter}") for letter in "dbca"]
    return made + same


PASSAGES = passages()
QUERIES = ["Heron pump", "the route of Kestrel-7b", "Basalt north", "valve"]


def written(conversations: object) -> list[str]:
    """A model that says the question again, in two lines."""
    return [f"- {c[-1]['content'].split('Question: ')[-1]}\n2. Osprey" for c in conversations]  # type: ignore[attr-defined]


def stored(corpus: Corpus) -> Searcher:
    search = StoreSearch(MemoryStore(tiny_encoder().dim), tiny_encoder())
    search.add(list(corpus))
    return search


SEARCHES: dict[str, Callable[[Corpus], Searcher]] = {
    "bm25": BM25,
    "dense": lambda corpus: Dense(corpus, tiny_encoder()),
    "hybrid": lambda corpus: Hybrid(BM25(corpus), Dense(corpus, tiny_encoder())),
    "fused": lambda corpus: Fused([BM25(corpus), Dense(corpus, tiny_encoder())]),
    "weighted": lambda corpus: Fused([BM25(corpus), Dense(corpus, tiny_encoder())], [0.7, 0.3], "weighted"),
    "store": stored,
    "summary-leaf": lambda corpus: SummaryLeaf(Hybrid(BM25(corpus)), BM25),
    "tree": lambda corpus: Tree(corpus, tiny_encoder(), fanout=4),
    "graph": lambda corpus: Graph(corpus, BM25(corpus)),
    "hyde": lambda corpus: Transformed(BM25(corpus), HyDE(written)),
    "hyde-mean": lambda corpus: MeanVector(Dense(corpus, tiny_encoder()), HyDE(written, 2)),
    "rq": lambda corpus: Transformed(Dense(corpus, tiny_encoder()), RQ(written)),
}


@pytest.fixture(params=SEARCHES)
def make(request: pytest.FixtureRequest) -> Callable[[Corpus], Searcher]:
    return SEARCHES[request.param]


def test_a_batch_finds_what_each_query_finds_alone(make: Callable[[Corpus], Searcher]) -> None:
    search = make(Corpus(PASSAGES))
    together = search.search(QUERIES, 7)
    assert together == search.search(QUERIES, 7)
    for query, hits in zip(QUERIES, together, strict=True):
        alone = search.search([query], 7)[0]
        assert [hit.passage_id for hit in alone] == [hit.passage_id for hit in hits]
        assert [hit.score for hit in alone] == pytest.approx([hit.score for hit in hits], abs=1e-5)


def test_hits_are_of_the_corpus_once_each_and_best_first(make: Callable[[Corpus], Searcher]) -> None:
    corpus = Corpus(PASSAGES)
    for hits in make(corpus).search(QUERIES, 9):
        ids = [hit.passage_id for hit in hits]
        assert 0 < len(ids) <= 9 and len(set(ids)) == len(ids) and all(passage_id in corpus for passage_id in ids)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_equal_passages_come_in_order_of_their_ids(make: Callable[[Corpus], Searcher]) -> None:
    hits = make(Corpus([Passage(p, "Twin", "Heron pump Basalt north") for p in ("d", "b", "c", "a")])).search(
        ["Heron"], 4
    )[0]
    assert [hit.passage_id for hit in hits] == ["a", "b", "c", "d"]


def test_k_keeps_the_head_and_may_exceed_the_corpus(make: Callable[[Corpus], Searcher]) -> None:
    search = make(Corpus(PASSAGES))
    every = search.search(["Heron pump"], 500)[0]
    assert search.search(["Heron pump"], 3)[0] == every[:3]
    assert len(every) <= len(PASSAGES)


def test_no_query_is_no_work_and_wrong_calls_are_refused(make: Callable[[Corpus], Searcher]) -> None:
    search = make(Corpus(PASSAGES[:5]))
    assert search.search([], 3) == []
    with pytest.raises(ConfigError, match="k is 0"):
        search.search(["a"], 0)
    with pytest.raises(ConfigError, match="list of queries"):
        search.search("a", 1)


@pytest.mark.parametrize("name", [name for name in SEARCHES if name != "store"])
def test_a_search_follows_its_corpus(name: str) -> None:
    corpus = Corpus(PASSAGES[:30])
    search = SEARCHES[name](corpus)
    search.search(QUERIES, 3)
    corpus.add(PASSAGES[30:])
    corpus.remove([PASSAGES[4].id])
    left = [passage for passage in PASSAGES if passage.id != PASSAGES[4].id]
    fresh = SEARCHES[name](Corpus(left))
    for ours, theirs in zip(search.search(QUERIES, 50), fresh.search(QUERIES, 50), strict=True):
        assert [hit.passage_id for hit in ours] == [hit.passage_id for hit in theirs]
