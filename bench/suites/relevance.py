"""What is found on Cranfield and on real follow-up conversations, beside bm25s with the same terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench.peers import find_peer
from bench.rows import Measurement
from bench.suites import Options
from bench.suites.finding import QUALITY, share
from bench.suites.retrieval.data import cranfield, followup_corpus, followups, rows
from pss_engine.retrieval import BM25, Corpus, Dense, Encoder, Fused, Passage, Searcher
from pss_engine.retrieval.analyzer import analyze

DEPTH = 100
FOLLOWUP_K = 10


def run(options: Options) -> Iterator[Measurement]:
    if (folder := cranfield(options)) is not None:
        yield from _cranfield([*rows(folder / "corpus.jsonl")], [*rows(folder / "queries.jsonl")], _gains(folder))
    if (path := followup_corpus(options)) is not None:
        yield from _followups(options, [Passage(r["id"], r["title"], r["text"]) for r in rows(path)])


def ndcg(found: Sequence[str], gains: Mapping[str, float], k: int) -> float:
    """Normalised discounted cumulative gain of the first k, gain / log2(rank + 1)."""
    best = sorted(gains.values(), reverse=True)[:k]
    ideal = sum(gain / math.log2(i + 2) for i, gain in enumerate(best))
    return sum(gains.get(doc, 0.0) / math.log2(i + 2) for i, doc in enumerate(found[:k])) / ideal if ideal else 0.0


def recall(found: Sequence[str], relevant: Sequence[str]) -> float:
    return len(set(found) & set(relevant)) / len(relevant)


def _gains(folder: Path) -> dict[str, dict[str, float]]:
    gains: dict[str, dict[str, float]] = {}
    for row in rows(folder / "qrels.jsonl"):
        if row["gain"] > 0:
            gains.setdefault(row["query_id"], {})[row["doc_id"]] = row["gain"]
    return gains


def _cranfield(
    documents: Sequence[Mapping[str, str]],
    queries: Sequence[Mapping[str, str]],
    gains: Mapping[str, Mapping[str, float]],
) -> Iterator[Measurement]:
    corpus = Corpus(Passage(row["id"], row["title"], row["text"]) for row in documents)
    asked = [row for row in queries if gains.get(row["id"])]
    texts = [row["query"] for row in asked]
    found: dict[str, list[list[str]]] = {}
    for name, searcher in _searchers(corpus).items():
        found[f"pss_engine-{name}"] = _ids(searcher.search(texts, DEPTH))
    if (peer := find_peer("bm25s_index")) is not None:
        index = peer.Index([analyze(passage.rendered) for passage in corpus])
        found[peer.NAME] = [
            [corpus[r].id for r in row] for row in index.search([analyze(t) for t in texts], DEPTH).tolist()
        ]
    for backend, ranked in found.items():
        for metric, measure in _MEASURES.items():
            values = [measure(row, gains[query["id"]]) for row, query in zip(ranked, asked, strict=True)]
            samples, n = share(values)
            yield Measurement(
                "cranfield", {"passages": len(corpus), "gain": "gain"}, backend, metric, "share", samples, QUALITY, n
            )


_MEASURES: dict[str, Callable[[Sequence[str], Mapping[str, float]], float]] = {
    "ndcg_at_10": lambda found, gains: ndcg(found, gains, 10),
    "recall_at_10": lambda found, gains: recall(found[:10], list(gains)),
    "recall_at_100": lambda found, gains: recall(found[:100], list(gains)),
}


def _followups(options: Options, passages: list[Passage]) -> Iterator[Measurement]:
    turns = [pair for pair in followups(options) if pair[1].get("rewrite")]
    if options.quick:
        turns = turns[::5]
        gold = {passage_id for _, turn in turns for passage_id in turn["evidence_ids"]}
        others = [passage for passage in passages if passage.id not in gold][::10]
        passages = [passage for passage in passages if passage.id in gold] + others
    corpus = Corpus(passages)
    texts = {
        "raw query": [turn["query"] for _, turn in turns],
        "joined history": [" ".join([*(t["query"] for t in before), turn["query"]]) for before, turn in turns],
        "published rewrite": [turn["rewrite"] for _, turn in turns],
    }
    for name, searcher in _searchers(corpus).items():
        for way, queries in texts.items():
            found = _ids(searcher.search(queries, FOLLOWUP_K))
            values = [recall(ids, turn["evidence_ids"]) for ids, (_, turn) in zip(found, turns, strict=True)]
            samples, n = share(values)
            params = {"passages": len(corpus), "searched_with": way, "k": FOLLOWUP_K}
            yield Measurement("follow-ups", params, f"pss_engine-{name}", "recall", "share", samples, QUALITY, n)


def _searchers(corpus: Corpus) -> dict[str, Searcher]:
    bm25, encoder = BM25(corpus), Encoder()
    vectors = encoder.passages([passage.rendered for passage in corpus])
    dense, exact = (Dense(corpus, encoder, kind, vectors) for kind in ("int8", "float32"))
    return {"bm25": bm25, "dense-int8": dense, "dense-float32": exact, "rrf": Fused([bm25, dense])}


def _ids(found: list[list[tuple[str, float]]]) -> list[list[str]]:
    return [[passage_id for passage_id, _ in hits] for hits in found]
