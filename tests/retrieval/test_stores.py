"""One contract for all vector stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pss_engine.errors import ConfigError
from pss_engine.retrieval import Passage
from pss_engine.retrieval.stores import MemoryStore, QdrantEdgeStore, QdrantServerStore, StoreSearch, VectorStore
from tests.retrieval.encoders import tiny_encoder
from tests.retrieval.vector_stores import KINDS, PERSISTENT, Open, edge, server

DIM = 6


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return KINDS[request.param](tmp_path, DIM)


@pytest.fixture
def store(open_store: Open) -> Iterator[VectorStore]:
    store = open_store()
    yield store
    store.close()


def vectors(count: int, seed: int = 0) -> torch.Tensor:
    """Few values, so that many inner products are equal."""
    return torch.randint(-1, 2, (count, DIM), generator=torch.Generator().manual_seed(seed)).float()


def expected(ids: list[str], held: torch.Tensor, query: torch.Tensor, k: int) -> list[tuple[str, float]]:
    scores = (held @ query).tolist()
    return sorted(zip(ids, scores, strict=True), key=lambda pair: (-pair[1], pair[0]))[:k]


IDS = [f"doc/{i * 37 % 90:02}#ä" for i in range(90)]


def test_searches_are_exact_with_ties_by_id(store: VectorStore) -> None:
    held, queries = vectors(90), vectors(5, 1)
    store.add(IDS[:50], held[:50])
    store.add(IDS[50:], held[50:])
    assert len(store) == 90
    for k in (1, 3, 20, 90, 200):
        for query, hits in zip(queries, store.search(queries, k), strict=True):
            assert [(hit.passage_id, hit.score) for hit in hits] == expected(IDS, held, query, k)


def test_it_says_which_ids_it_holds(store: VectorStore) -> None:
    store.add(IDS[:5], vectors(5))
    assert store.held([*IDS[3:8], "z"]) == set(IDS[3:5])
    assert store.held([]) == set()


def test_removed_vectors_are_gone_and_can_come_back(store: VectorStore) -> None:
    held, query = vectors(90), vectors(1, 2)
    store.add(IDS, held)
    store.remove(IDS[10:80])
    left = IDS[:10] + IDS[80:]
    assert len(store) == 20
    assert [hit.passage_id for hit in store.search(query, 90)[0]] == [
        passage_id for passage_id, _ in expected(left, torch.cat([held[:10], held[80:]]), query[0], 90)
    ]
    store.add(IDS[10:11], held[10:11])
    assert len(store) == 21


def test_a_search_can_be_among_some_ids(store: VectorStore) -> None:
    held, query = vectors(90), vectors(1, 3)
    store.add(IDS, held)
    chosen = IDS[3:70:9]
    found = [hit.passage_id for hit in store.search(query, 5, among=chosen)[0]]
    assert found == [passage_id for passage_id, _ in expected(chosen, held[3:70:9], query[0], 5)]


def test_wrong_input_changes_nothing(store: VectorStore) -> None:
    store.add(["a", "b"], vectors(2))
    broken = vectors(1)
    broken[0, 3] = float("nan")
    for change, message in (
        (lambda: store.add(["c"], broken), "vector 0 of 1 holds NaN or infinity"),
        (lambda: store.add(["c"], torch.ones(1, DIM + 1)), r"vectors are \[1, 7\]; the store takes \[1, 6\]"),
        (lambda: store.add(["c", "c"], vectors(2)), "'c' is given twice"),
        (lambda: store.add(["c", "a"], vectors(2)), "'a' is stored already"),
        (lambda: store.remove(["a", "z"]), "'z' is not among the 2 stored"),
        (lambda: store.search(broken, 1), "holds NaN"),
        (lambda: store.search(torch.ones(1, 2), 1), r"the store takes \[B, 6\]"),
        (lambda: store.search(vectors(1), 0), "k is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            change()
        assert len(store) == 2


def test_an_empty_store_finds_nothing(store: VectorStore) -> None:
    assert store.search(vectors(2), 3) == [[], []]
    assert store.search(torch.zeros(0, DIM), 3) == []


@pytest.mark.parametrize("kind", PERSISTENT)
def test_what_is_closed_is_there_when_opened_again(kind: str, tmp_path: Path) -> None:
    open_store = KINDS[kind](tmp_path, DIM)
    store = open_store()
    store.add(IDS, vectors(90))
    store.remove(IDS[:5])
    before = store.search(vectors(2, 4), 9)
    store.close()
    again = open_store()
    assert len(again) == 85 and again.search(vectors(2, 4), 9) == before
    with pytest.raises(ConfigError, match="is stored already"):
        again.add(IDS[9:10], vectors(1))
    again.close()


def test_an_embedded_store_of_another_size_or_folder_is_refused(tmp_path: Path) -> None:
    edge(tmp_path, DIM)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file.txt").write_text("not a shard")
    with pytest.raises(ConfigError, match="other cannot be opened"):
        QdrantEdgeStore(tmp_path / "other", DIM)
    QdrantEdgeStore(tmp_path / "shard", DIM).close()
    with pytest.raises(ConfigError, match="holds vectors of 6 features"):
        QdrantEdgeStore(tmp_path / "shard", DIM + 1)


def test_a_server_that_does_not_answer_is_told_in_one_line(tmp_path: Path) -> None:
    server(tmp_path, DIM)
    with pytest.raises(ConfigError, match=r"Qdrant at http://127\.0\.0\.1:9 cannot be used") as caught:
        QdrantServerStore("passages", DIM, "http://127.0.0.1:9")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="give one of them"):
        QdrantServerStore("passages", DIM)


def test_a_store_searches_texts_with_an_encoder() -> None:
    encoder = tiny_encoder()
    search = StoreSearch(MemoryStore(encoder.dim, "int8"), encoder)
    passages = [Passage(f"p{i}", "t", f"text {i}") for i in range(9)]
    search.add(passages)
    assert search.search(["t\ntext 4"], 1)[0][0].passage_id == "p4"
    with pytest.raises(ConfigError, match="the encoder gives 32"):
        StoreSearch(MemoryStore(DIM), encoder)
