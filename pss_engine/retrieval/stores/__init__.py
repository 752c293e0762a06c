"""Where vectors live: in this process, in an embedded Qdrant, or on a Qdrant server, behind one interface."""

from __future__ import annotations

from pss_engine.retrieval.stores.memory import MemoryStore
from pss_engine.retrieval.stores.qdrant_edge import QdrantEdgeStore
from pss_engine.retrieval.stores.qdrant_server import QdrantServerStore
from pss_engine.retrieval.stores.search import StoreSearch
from pss_engine.retrieval.stores.store import VectorStore

__all__ = ["MemoryStore", "QdrantEdgeStore", "QdrantServerStore", "StoreSearch", "VectorStore"]
