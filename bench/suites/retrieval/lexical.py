"""BM25 top-k against bm25s, with the same terms and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from bench.peers import find_peer
from bench.rows import Measurement
from bench.suites.retrieval.synthetic import PASSAGE_TERMS, QUERY_TERMS, VOCABULARY, K, terms
from bench.timing import paired_seconds
from pss_engine.retrieval import BM25
from pss_engine.retrieval.search import ranked

SIZES = (1_000, 10_000, 100_000)
NUM_QUERIES = (1, 8, 64)


@cache
def documents(size: int) -> list[list[str]]:
    return terms(size, PASSAGE_TERMS, 3)


@cache
def our_index(size: int) -> BM25:
    return BM25([" ".join(document) for document in documents(size)], analyzer=str.split)


@cache
def peer_index(size: int) -> tuple[str, object] | None:
    peer = find_peer("bm25s_index")
    return None if peer is None else (peer.NAME, peer.Index(documents(size)))


def run(quick: bool) -> Iterator[Measurement]:
    for size in SIZES[:2] if quick else SIZES:
        index, found = our_index(size), peer_index(size)
        for num_queries in NUM_QUERIES:
            queries = terms(num_queries, QUERY_TERMS, 4)
            texts = [" ".join(query) for query in queries]
            calls: dict[str, Callable[[], object]] = {
                "pss_engine": lambda t=texts, i=index: ranked(i.corpus, None, i.sparse(t), K)
            }
            checked: dict[str, bool | str] = {"pss_engine": "bm25s is not installed"}
            if found is not None:
                name, peer = found
                calls[name] = lambda p=peer, q=queries: p.search(q, K)  # type: ignore[attr-defined]
                checked = {"pss_engine": same_scores(index, peer, queries), name: "the peer itself"}
            params = {"passages": size, "queries": num_queries, "vocabulary": VOCABULARY, "query_terms": QUERY_TERMS}
            params |= {"passage_terms": PASSAGE_TERMS, "k": K, "left_out": "1,000,000: bm25s takes minutes to index it"}
            for backend, samples in paired_seconds(calls, 15).items():
                yield Measurement("bm25", params, backend, "seconds", "s", samples, checked[backend])


def same_scores(index: BM25, peer: object, queries: Sequence[list[str]]) -> bool | str:
    """Whether all scores of all passages agree to float32's last digits."""
    for query in queries:
        theirs = peer.scores([term for term in query if index.knows(term)])  # type: ignore[attr-defined]
        if not np.allclose(index.scores(" ".join(query)), theirs, rtol=1e-4, atol=1e-5):
            return "scores differ from bm25s"
    return True
