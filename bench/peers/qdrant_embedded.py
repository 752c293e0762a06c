"""Qdrant's engine in this process (qdrant-edge-py), asked for exact search."""

from __future__ import annotations

import importlib.metadata
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt
from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeShard,
    EdgeVectorParams,
    Point,
    Query,
    QueryBatchRequest,
    QueryRequest,
    SearchParams,
    UpdateOperation,
)

NAME = f"qdrant-edge {importlib.metadata.version('qdrant-edge-py')}"
BATCH = 1000


class Shard:
    def __init__(self, vectors: npt.NDArray[np.float32]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pss-bench-qdrant-")
        self._shard = EdgeShard.create(
            self._folder.name, EdgeConfig(vectors=EdgeVectorParams(vectors.shape[1], Distance.Dot))
        )
        for start in range(0, len(vectors), BATCH):
            points = [Point(start + i, row.tolist()) for i, row in enumerate(vectors[start : start + BATCH])]
            self._shard.update(UpdateOperation.upsert_points(points))

    def search(self, queries: npt.NDArray[np.float32], k: int) -> npt.NDArray[Any]:
        """[B, k] rows, best first."""
        asked = [
            QueryRequest(limit=k, query=Query.Nearest(query.tolist()), params=SearchParams(exact=True))
            for query in queries
        ]
        return np.array([[point.id for point in found] for found in self._shard.query_batch(QueryBatchRequest(asked))])

    def close(self) -> None:
        self._shard.close()
        self._folder.cleanup()
