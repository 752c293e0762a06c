"""Tier 3, first role: which passages a call may read. Without this role there is no evidence; no memory is in it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from pss_engine.agents.faults import Fault
from pss_engine.errors import ConfigError
from pss_engine.metrics import AgentCounters
from pss_engine.retrieval import Encoder, Hit, Passage
from pss_engine.retrieval.stores import VectorStore

_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Reranker(Protocol):
    """Scores candidates for a search text; higher is better. Errors are the caller's: no order is kept in silence."""

    def scores(self, query: Tensor, passages: Sequence[Passage]) -> list[float]: ...


class SentenceReranker:
    """``max over sentences s of a passage of <query, s>``: one good sentence in a long passage is enough.

    Sentences are encoded once, when their passage first becomes a candidate.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._sentences: dict[str, Tensor] = {}

    def scores(self, query: Tensor, passages: Sequence[Passage]) -> list[float]:
        fresh = [passage for passage in passages if passage.id not in self._sentences]
        parts = [[f"{passage.title}. {part}" for part in _SENTENCE.split(passage.text)] for passage in fresh]
        vectors = self._encoder.passages([part for own in parts for part in own])
        for passage, own in zip(fresh, vectors.split([len(own) for own in parts]), strict=True):
            self._sentences[passage.id] = own
        return [float((self._sentences[passage.id] @ query).max()) for passage in passages]


class EvidencePool:
    """Passages in a vector store, searched and reranked.

    A passage lies in the store under its id and the digest of its text: one that is there already is not encoded again,
    and another text under the same id, of another collection or an earlier run, is never taken for it.

    Args:
        store: may hold passages of others too; only those given here are ever found.
        num_candidates: passages of the vector search that are reranked.

    Raises:
        ConfigError: store and encoder do not fit, or an id is given twice.
    """

    def __init__(
        self,
        store: VectorStore,
        encoder: Encoder,
        passages: Iterable[Passage],
        counters: AgentCounters,
        reranker: Reranker | None = None,
        num_candidates: int = 10,
    ) -> None:
        if store.dim != encoder.dim:
            raise ConfigError(f"the store holds vectors of {store.dim} features, the encoder gives {encoder.dim}")
        self._store, self._encoder, self._counters = store, encoder, counters
        self._reranker, self._num_candidates = reranker or SentenceReranker(encoder), num_candidates
        given = list(passages)
        self._passages = {passage.id: passage for passage in given}
        if len(self._passages) < len(given):
            raise ConfigError("a passage id is given twice")
        self._keys = {passage.id: f"{passage.id}/{_digest(passage)}" for passage in given}
        self._ids = {key: passage_id for passage_id, key in self._keys.items()}
        held = store.held(self._ids)
        fresh = [passage for passage in given if self._keys[passage.id] not in held]
        if fresh:
            vectors = encoder.passages([passage.rendered for passage in fresh])
            store.add([self._keys[passage.id] for passage in fresh], vectors)

    def __getitem__(self, passage_id: str) -> Passage:
        return self._passages[passage_id]

    def __len__(self) -> int:
        return len(self._passages)

    def search_reranked(self, text: str, k: int, scope: Collection[str] | None = None) -> list[Hit]:
        """The ``k`` best passages for a text, equal ones by id; ``scope``: only these ids.

        Raises:
            Fault: the store or the reranker failed.
        """
        allowed = self._passages.keys() if scope is None else scope & self._passages.keys()
        self._counters.num_evidence_searches += 1
        if not allowed:
            return []
        query = self._encoder.queries([text])
        with _failing("evidence_store"):
            among = [self._keys[passage_id] for passage_id in allowed]
            found = self._store.search(query, max(k, self._num_candidates), among)[0]
        passages = [self._passages[self._ids[hit.passage_id]] for hit in found]
        with _failing("reranker"):  # the order before it is not its order: no falling back
            scores = self._reranker.scores(query[0], passages)
        self._counters.num_reranked += len(passages)
        hits = [Hit(passage.id, score) for passage, score in zip(passages, scores, strict=True)]
        return sorted(hits, key=lambda hit: (-hit.score, hit.passage_id))[:k]


def _digest(passage: Passage) -> str:
    return hashlib.sha256(passage.rendered.encode()).hexdigest()[:16]


@contextmanager
def _failing(cause: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # stores pass on what their transports raise, of many kinds
        raise Fault(cause, f"{cause} failed: {type(error).__name__}: {' '.join(str(error).split())}") from error


def cosines(encoder: Encoder, texts: Sequence[str]) -> Tensor:
    """Vectors of texts at length 1, [B, dim] float32: their inner products are cosines."""
    return torch.nn.functional.normalize(encoder.queries(texts), dim=1)
