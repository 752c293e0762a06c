"""The retrieval and relevance suites at a small size: peers and we find the same, measures follow their formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.suites import Options, relevance
from bench.suites.retrieval import dense, hybrid, lexical, synthetic
from bench.suites.retrieval.data import followup_queries, followups


def test_all_dense_ways_find_the_same() -> None:
    held, queries = synthetic.vectors(400), synthetic.unit(3, 2)
    exact = dense.partition(queries.numpy(), held.float32.numpy(), 10)
    assert dense._differing(dense.top(held.search(queries, "float32")).list_passages.numpy(), exact) is True
    for search in dense._peers(held).values():
        assert dense._differing(np.asarray(search(queries)), exact) is True
    assert dense._differing(exact[:, ::-1] + 1, exact) is not True


def test_our_bm25_scores_are_the_peers() -> None:
    found = lexical.peer_index(300)
    if found is None:
        pytest.skip("bm25s is not installed")
    queries = synthetic.terms(5, 6, 4)
    assert lexical.same_scores(lexical.our_index(300), found[1], queries) is True
    other = lexical.BM25([" ".join(d) for d in lexical.documents(300)], analyzer=str.split, k1=2.0)
    assert lexical.same_scores(other, found[1], queries) == "scores differ from bm25s"


def test_the_fused_call_finds_what_the_parts_find() -> None:
    found = lexical.peer_index(300)
    if found is None:
        pytest.skip("bm25s is not installed")
    queries, words = synthetic.unit(4, 2), synthetic.terms(4, 6, 4)
    ours = hybrid.Ours(300, "float32").search(queries, [" ".join(query) for query in words])
    part = hybrid.dense_parts(synthetic.vectors(300))[hybrid.TORCH]
    theirs = hybrid.fuse(part(queries), found[1].search(words, hybrid.DEPTH))
    shared = sum(len(set(a) & set(b)) for a, b in zip(ours, theirs, strict=True))
    assert shared >= 38  # of 40: equal BM25 scores are in another order there


def test_places_without_a_passage_are_not_fused() -> None:
    assert hybrid.fuse(np.array([[2, 1]]), np.array([[1, -1]])) == [[1, 2]]


def test_measures_follow_their_formulas() -> None:
    gains = {"a": 3.0, "b": 1.0}
    ideal = 3 + 1 / math.log2(3)
    assert relevance.ndcg(["a", "b"], gains, 10) == pytest.approx(1)
    assert relevance.ndcg(["x", "a"], gains, 10) == pytest.approx(3 / math.log2(3) / ideal)
    assert relevance.ndcg(["x", "a"], gains, 1) == 0
    assert relevance.recall(["b", "x"], ["a", "b"]) == 0.5


def test_follow_ups_are_later_turns_with_evidence(tmp_path: Path) -> None:
    turns = [
        {"query": "one", "evidence_ids": ["a"], "rewrite": "first"},
        {"query": "two", "evidence_ids": ["b"], "rewrite": "second"},
        {"query": "three", "evidence_ids": []},
    ]
    sessions = [{"source": "cast2021", "turns": turns}, {"source": "cast2019", "turns": turns}]
    (tmp_path / "followup_sessions.jsonl").write_text("".join(json.dumps(session) + "\n" for session in sessions))
    options = Options(True, tmp_path)
    assert [(len(before), turn["query"]) for before, turn in followups(options)] == [(1, "two")]
    assert followup_queries(options, "rewrite") == ["second"]


def test_vectors_are_of_length_one() -> None:
    torch.testing.assert_close(synthetic.unit(50, 3).norm(dim=1), torch.ones(50))
