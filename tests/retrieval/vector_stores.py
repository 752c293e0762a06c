"""Every kind of vector store, each opened again on the same folder by calling what its function returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from pss_engine.retrieval.stores import MemoryStore, QdrantEdgeStore, QdrantServerStore, VectorStore

Open = Callable[[], VectorStore]


def edge(folder: Path, dim: int) -> Open:
    pytest.importorskip("qdrant_edge", reason="qdrant-edge-py is not installed")
    return lambda: QdrantEdgeStore(folder / "shard", dim)


def server(folder: Path, dim: int) -> Open:
    """The server's store, with the client's own in-process server."""
    client = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    warnings.filterwarnings("ignore", message="Local mode performs exact")
    return lambda: QdrantServerStore("passages", dim, client=client.QdrantClient(path=str(folder / "server")))


KINDS: dict[str, Callable[[Path, int], Open]] = {
    "memory": lambda folder, dim: lambda: MemoryStore(dim),
    "qdrant-edge": edge,
    "qdrant-server": server,
}
PERSISTENT = [kind for kind in KINDS if kind != "memory"]
