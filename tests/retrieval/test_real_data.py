"""Cranfield and real follow-up conversations, which no one here wrote; absent = skipped with a reason."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest

from bench.environment import ROOT
from bench.suites import Options
from bench.suites.relevance import ndcg, recall
from bench.suites.retrieval.data import followups
from pss_engine.retrieval import BM25, Corpus, Passage
from pss_engine.retrieval.analyzer import analyze

DATA = Path(os.environ.get("PSS_DATA") or ROOT.parent / "shared" / "data")


def rows(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not in the folder of evaluation data; name it with PSS_DATA")
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


@pytest.fixture(scope="module")
def cranfield() -> Corpus:
    return Corpus(Passage(row["id"], row["title"], row["text"]) for row in rows("ir_small/corpus.jsonl"))


@pytest.mark.parametrize("variant", ["lucene", "atire"])
def test_cranfield_is_ranked_as_bm25s_ranks_it_up_to_ties(cranfield: Corpus, variant: str) -> None:
    ours = BM25(cranfield, variant=variant)
    peer = bm25s.BM25(method=variant, k1=1.2, b=0.75)
    peer.index([analyze(passage.rendered) for passage in cranfield], show_progress=False)
    ids = [passage.id for passage in cranfield]
    for row in rows("ir_small/queries.jsonl"):
        theirs = peer.get_scores([term for term in analyze(row["query"]) if ours.knows(term)])
        np.testing.assert_allclose(ours.scores(row["query"]), theirs, rtol=1e-4, atol=1e-5)
        found = ours.search([row["query"]], 10)[0]
        # Place by place, the passage there has the score of the peer's passage at that place.
        best = np.sort(theirs)[::-1][:10]
        assert [theirs[ids.index(hit.passage_id)] for hit in found] == pytest.approx(best, rel=1e-4)


def test_cranfield_is_answered_as_well_as_its_data_say(cranfield: Corpus) -> None:
    gains: dict[str, dict[str, float]] = {}
    for row in rows("ir_small/qrels.jsonl"):
        if row["gain"] > 0:
            gains.setdefault(row["query_id"], {})[row["doc_id"]] = row["gain"]
    queries = [row for row in rows("ir_small/queries.jsonl") if row["id"] in gains]
    found = BM25(cranfield).search([row["query"] for row in queries], 10)
    values = [
        ndcg([h.passage_id for h in hits], gains[row["id"]], 10) for hits, row in zip(found, queries, strict=True)
    ]
    assert sum(values) / len(values) > 0.33  # a plain BM25 reaches 0.34


def test_rewrites_of_follow_ups_find_more_than_the_raw_queries() -> None:
    corpus = Corpus(Passage(row["id"], row["title"], row["text"]) for row in rows("followup_corpus.jsonl"))
    rows("followup_sessions.jsonl")
    turns = [turn for _, turn in followups(Options(True, DATA)) if turn.get("rewrite")]
    index = BM25(corpus)
    shares = {}
    for field in ("query", "rewrite"):
        found = index.search([turn[field] for turn in turns], 10)
        values = [recall([h.passage_id for h in hits], t["evidence_ids"]) for hits, t in zip(found, turns, strict=True)]
        shares[field] = sum(values) / len(values)
    assert shares["rewrite"] > shares["query"] > 0.4
