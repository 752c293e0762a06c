"""A vector store as a search over texts."""

from __future__ import annotations

from collections.abc import Sequence

from pss_engine.errors import ConfigError
from pss_engine.retrieval.encoder import Encoder
from pss_engine.retrieval.passage import Hit, Passage
from pss_engine.retrieval.search import check_search
from pss_engine.retrieval.stores.store import VectorStore


class StoreSearch:
    """A :class:`Searcher` over any :class:`VectorStore`. Raises ConfigError where store and encoder do not fit."""

    def __init__(self, store: VectorStore, encoder: Encoder) -> None:
        if store.dim != encoder.dim:
            raise ConfigError(f"the store holds vectors of {store.dim} features, the encoder gives {encoder.dim}")
        self.store, self.encoder = store, encoder

    def add(self, passages: Sequence[Passage]) -> None:
        """Encode and store passages."""
        vectors = self.encoder.passages([passage.rendered for passage in passages])
        self.store.add([passage.id for passage in passages], vectors)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        check_search(queries, k)
        return self.store.search(self.encoder.queries(queries), k) if queries else []
