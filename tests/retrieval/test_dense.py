from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pss_engine.errors import ConfigError
from pss_engine.retrieval import Corpus, Dense, Passage
from pss_engine.retrieval.columns import save_columns
from pss_engine.retrieval.quantize import VECTOR_TYPES, store_as
from tests.retrieval.encoders import real_encoder, tiny_encoder

PASSAGES = [Passage(f"p{i:02}", f"title {i}", f"text number {i * 7} of {i % 3}") for i in range(20)]
QUERIES = ["text number 14", "title", "of 2", ""]


@pytest.mark.parametrize("kind", VECTOR_TYPES)
def test_hits_are_the_highest_inner_products(kind: str) -> None:
    encoder = tiny_encoder()
    dense = Dense(Corpus(PASSAGES), encoder, kind)
    vectors = encoder.passages([passage.rendered for passage in PASSAGES])
    scores = encoder.queries(QUERIES) @ vectors.T
    # Halves of what two neighbouring codes differ by, for both sides of the product.
    tolerance = {"int8": 2e-2, "float16": 2e-3, "float32": 1e-5}[kind]
    for row, hits in zip(scores, dense.search(QUERIES, 5), strict=True):
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        for hit, best in zip(hits, row.sort(descending=True).values.tolist(), strict=False):
            assert hit.score == pytest.approx(row[int(hit.passage_id[1:])].item(), abs=tolerance)
            assert hit.score == pytest.approx(best, abs=tolerance)


def test_int8_vectors_are_within_half_a_code() -> None:
    vectors = torch.randn(9, 33, generator=torch.Generator().manual_seed(1))
    vectors[4] = 0
    codes, scales = store_as(vectors, "int8")
    assert scales is not None
    assert ((codes * scales[:, None] - vectors).abs() <= scales[:, None] / 2 + 1e-7).all()


@pytest.mark.parametrize("kind", VECTOR_TYPES)
def test_vectors_with_nan_are_refused(kind: str) -> None:
    vectors = torch.ones(3, 4)
    vectors[1, 2] = float("nan")
    with pytest.raises(ConfigError, match="vector 1 of 3 holds NaN or infinity"):
        store_as(vectors, kind)


def test_values_beyond_float16_are_refused() -> None:
    with pytest.raises(ConfigError, match="vector 0 of 1 holds NaN or infinity"):
        store_as(torch.full((1, 2), 1e6), "float16")


def test_the_index_follows_its_corpus() -> None:
    corpus, encoder = Corpus(PASSAGES[:10]), tiny_encoder()
    dense = Dense(corpus, encoder)
    corpus.add(PASSAGES[10:])
    corpus.remove(["p03", "p12"])
    left = [passage for passage in PASSAGES if passage.id not in ("p03", "p12")]
    assert dense.search(QUERIES, 30) == Dense(Corpus(left), encoder).search(QUERIES, 30)


def test_a_saved_index_finds_the_same(tmp_path: Path) -> None:
    corpus, encoder = Corpus(PASSAGES), tiny_encoder()
    for kind in VECTOR_TYPES:
        dense = Dense(corpus, encoder, kind)
        dense.save(tmp_path / kind)
        assert Dense.open(tmp_path / kind, corpus, encoder, kind).search(QUERIES, 4) == dense.search(QUERIES, 4)


def test_an_index_of_something_else_is_refused(tmp_path: Path) -> None:
    corpus = Corpus(PASSAGES)
    Dense(corpus, tiny_encoder()).save(tmp_path)
    with pytest.raises(ConfigError, match=r"dense index .* is of encoder .* build it again"):
        Dense.open(tmp_path, corpus, tiny_encoder(8))
    with pytest.raises(ConfigError, match="is of corpus"):
        Dense.open(tmp_path, Corpus(PASSAGES[1:]), tiny_encoder())
    with pytest.raises(ConfigError, match="is of vector_type int8, float32 is in use"):
        Dense.open(tmp_path, corpus, tiny_encoder(), "float32")
    with pytest.raises(ConfigError, match=r"dense\.json: no such file"):
        Dense.open(tmp_path / "nowhere", corpus, tiny_encoder())
    save_columns(
        tmp_path / "dense.safetensors", {"vectors": np.zeros((20, 32), np.int8), "scales": np.zeros(20, np.float32)}
    )
    with pytest.raises(ConfigError, match="is damaged"):
        Dense.open(tmp_path, corpus, tiny_encoder())
    with pytest.raises(ConfigError, match="vector type 'int4' is unknown"):
        Dense(corpus, tiny_encoder(), "int4")


def test_minilm_ranks_meaning_above_words() -> None:
    corpus = Corpus(
        [Passage("car", "", "The automobile needs new tyres."), Passage("river", "", "The bank of the river.")]
    )
    assert Dense(corpus, real_encoder()).search(["my vehicle's wheels are worn"], 1)[0][0].passage_id == "car"
