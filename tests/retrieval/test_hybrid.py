"""Lexical and dense search in one call: the same as each by itself, fused in the open."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pss_engine.errors import ConfigError
from pss_engine.ops import retrieve_topk
from pss_engine.retrieval import BM25, Corpus, Dense, Hybrid, Passage, rrf
from tests.retrieval.encoders import tiny_encoder
from tests.tiny import tiny_tokenizer

WORDS = [f"w{i}" for i in range(25)]
DRAW = random.Random(3)
PASSAGES = [Passage(f"p{i:02}", f"t{i % 5}", " ".join(DRAW.choices(WORDS, k=8))) for i in range(40)]
QUESTIONS = [["w1 w2", "w3"], ["w4"], ["w5 w6", "w7", "unheard"]]


@pytest.fixture
def hybrid() -> Hybrid:
    corpus = Corpus(PASSAGES)
    return Hybrid(BM25(corpus), Dense(corpus, tiny_encoder()), depth=12)


def test_every_ranking_is_that_of_its_index_alone(hybrid: Hybrid) -> None:
    found = hybrid.retrieve(QUESTIONS, 4)
    for question, rankings in zip(QUESTIONS, found.rankings, strict=True):
        for name, index in (("bm25", hybrid.bm25), ("dense", hybrid.dense)):
            assert index is not None
            for place, text in enumerate(question):
                assert rankings[name, place] == index.search([text], 12)[0]


def test_questions_are_fused_by_reciprocal_rank(hybrid: Hybrid) -> None:
    found = hybrid.retrieve(QUESTIONS, 6)
    for hits, rankings in zip(found.hits, found.rankings, strict=True):
        assert hits == rrf(list(rankings.values()), k=6)
    corpus = hybrid.corpus
    assert [[corpus[row].id for row in rows if row >= 0] for rows in found.rows.tolist()] == [
        [hit.passage_id for hit in hits] for hits in found.hits
    ]


def test_one_call_of_the_op_serves_all_questions(hybrid: Hybrid) -> None:
    before = sum(retrieve_topk.calls.values())
    hybrid.retrieve(QUESTIONS, 4)
    assert sum(retrieve_topk.calls.values()) == before + 1


def test_one_index_and_one_text_keep_their_scores(hybrid: Hybrid) -> None:
    assert hybrid.bm25 is not None
    alone = Hybrid(hybrid.bm25)
    assert alone.search(["w1 w2", "unheard"], 3) == [hybrid.bm25.search(["w1 w2"], 3)[0], []]


def test_weights_lift_an_index(hybrid: Hybrid) -> None:
    assert hybrid.dense is not None
    heavy = Hybrid(hybrid.bm25, hybrid.dense, weights=(1e-6, 1.0)).search(["w1"], 5)[0]
    assert [hit.passage_id for hit in heavy] == [hit.passage_id for hit in hybrid.dense.search(["w1"], 5)[0]]


def test_masks_are_kept_apart_by_question(hybrid: Hybrid) -> None:
    masks = [hybrid.mask(lambda p: p.title == "t1"), None, hybrid.mask(lambda p: p.title == "t2")]
    found = hybrid.retrieve(QUESTIONS, 40, masks)
    titles = [{hybrid.corpus.by_id(hit.passage_id).title for hit in hits} for hits in found.hits]
    assert titles[0] == {"t1"} and titles[2] == {"t2"} and len(titles[1]) == 5
    assert found.hits[1] == hybrid.retrieve(QUESTIONS[1:2], 40).hits[0]
    with pytest.raises(ConfigError, match=r"mask 0 is bool \[3\]; expected bool \[40\]"):
        hybrid.retrieve([["w1"]], 1, [np.ones(3, np.bool_)])


def test_removed_passages_are_not_found(hybrid: Hybrid) -> None:
    gone = hybrid.search(["w1"], 1)[0][0].passage_id
    everywhere = np.ones(hybrid.corpus.num_rows, np.bool_)
    hybrid.corpus.remove([gone])
    for masks in (None, [everywhere]):
        found = hybrid.retrieve([["w1", "w2"]], 40, masks)
        assert gone not in {hit.passage_id for hit in found.hits[0]} and len(found.hits[0]) == 39


def test_prompts_are_the_stored_token_ids_in_order_of_rank(hybrid: Hybrid) -> None:
    tokenizer = tiny_tokenizer()
    found = hybrid.retrieve([["w1"], ["unheard"]], 2)
    before, after, separator = torch.tensor([1]).int(), torch.tensor([2]).int(), torch.tensor([7, 8]).int()
    with pytest.raises(ConfigError, match="holds no token ids"):
        hybrid.prompts(found, [before] * 2, [after] * 2, separator)
    hybrid.corpus.tokenize(tokenizer)
    first, _ = hybrid.prompts(found, [before] * 2, [after] * 2, separator)
    texts = [hybrid.corpus.by_id(hit.passage_id).rendered for hit in found.hits[0]]
    one, two = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    assert first.tolist() == [1, *one, 7, 8, *two, 2]
    assert hybrid.bm25 is not None
    nothing = Hybrid(hybrid.bm25)
    assert nothing.prompts(nothing.retrieve([["unheard"]], 2), [before], [after], separator)[0].tolist() == [1, 2]


def test_wrong_calls_are_refused(hybrid: Hybrid) -> None:
    for wrong, message in (
        (lambda: Hybrid(), "needs a BM25 index, a dense one, or both"),
        (lambda: Hybrid(hybrid.bm25, Dense(Corpus(PASSAGES), tiny_encoder())), "over the same corpus"),
        (lambda: Hybrid(hybrid.bm25, depth=0), "depth is 0"),
        (lambda: Hybrid(hybrid.bm25, weights=(0.0, 1.0)), "must be above 0"),
        (lambda: hybrid.retrieve([["a"]], 0), "k is 0"),
        (lambda: hybrid.retrieve([[]], 1), "at least one text"),
        (lambda: hybrid.search("text", 1), "list of queries"),
    ):
        with pytest.raises(ConfigError, match=message):
            wrong()
