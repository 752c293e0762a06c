"""Qdrant's own engine in this process (extra ``qdrant-edge``), in a folder that its server reads too."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from pss_engine.errors import BackendUnavailable, ConfigError
from pss_engine.retrieval.passage import Hit
from pss_engine.retrieval.stores.qdrant_points import PAYLOAD, SLACK, point_id, settled
from pss_engine.retrieval.stores.store import check_k, check_new_ids, check_vectors, unknown_id

_BATCH = 1000


class QdrantEdgeStore:
    """See :class:`VectorStore`.

    Args:
        folder: of the shard; created where there is none.

    Raises:
        BackendUnavailable: qdrant-edge-py is not installed.
        ConfigError: the folder holds something else, or vectors of another size.
    """

    def __init__(self, folder: str | os.PathLike[str], dim: int) -> None:
        try:
            import qdrant_edge
        except ImportError:
            raise BackendUnavailable(
                "the embedded Qdrant needs qdrant-edge-py: pip install 'pss-engine[qdrant-edge]'"
            ) from None
        self._edge: Any = qdrant_edge
        self.dim, path = dim, Path(folder)
        config = self._edge.EdgeConfig(vectors=self._edge.EdgeVectorParams(dim, self._edge.Distance.Dot))
        try:
            if path.exists() and any(path.iterdir()):
                self._shard = self._edge.EdgeShard.load(str(path))
            else:
                path.mkdir(parents=True, exist_ok=True)
                self._shard = self._edge.EdgeShard.create(str(path), config)
        except Exception as error:  # the library raises plain Exception for all that can be wrong with a folder
            raise ConfigError(f"vector store {path} cannot be opened: {' '.join(str(error).split())}") from None
        held = self._shard_size(path)
        if held != dim:
            self._shard.close()
            raise ConfigError(f"vector store {path} holds vectors of {held} features, the encoder gives {dim}")
        self._ids = self._stored_ids()

    def __len__(self) -> int:
        return len(self._ids)

    def held(self, ids: Collection[str]) -> set[str]:
        return set(ids) & self._ids

    def add(self, ids: Sequence[str], vectors: Tensor) -> None:
        check_vectors(vectors, self.dim, len(ids))
        check_new_ids(ids, self._ids)
        rows = vectors.float().tolist()
        for start in range(0, len(ids), _BATCH):
            points = [
                self._edge.Point(point_id(passage_id), row, {PAYLOAD: passage_id})
                for passage_id, row in zip(ids[start : start + _BATCH], rows[start : start + _BATCH], strict=True)
            ]
            self._shard.update(self._edge.UpdateOperation.upsert_points(points))
            self._ids.update(ids[start : start + _BATCH])

    def remove(self, ids: Collection[str]) -> None:
        if unknown := sorted(set(ids) - self._ids):
            raise unknown_id(unknown[0], len(self))
        self._shard.update(self._edge.UpdateOperation.delete_points([point_id(passage_id) for passage_id in ids]))
        self._ids -= set(ids)

    def search(self, queries: Tensor, k: int, among: Collection[str] | None = None) -> list[list[Hit]]:
        check_k(k)
        check_vectors(queries, self.dim)
        if not self._ids or not len(queries):
            return [[] for _ in queries]
        rows, asked = queries.float().tolist(), k + SLACK
        found = self._shard.query_batch(self._edge.QueryBatchRequest([self._query(row, asked, among) for row in rows]))
        return [
            settled(_hits(points), asked, k, partial(self._fetch_one, row, among))
            for row, points in zip(rows, found, strict=True)
        ]

    def close(self) -> None:
        self._shard.flush()
        self._shard.close()

    def _fetch_one(self, row: list[float], among: Collection[str] | None, limit: int) -> list[Hit]:
        return _hits(self._shard.query(self._query(row, limit, among)))

    def _query(self, row: list[float], limit: int, among: Collection[str] | None) -> Any:
        edge = self._edge
        ids = None if among is None else set(map(point_id, among))
        return edge.QueryRequest(
            limit=limit,
            query=edge.Query.Nearest(row),
            filter=None if ids is None else edge.Filter(must=[edge.HasIdCondition(ids)]),
            params=edge.SearchParams(exact=True),
            with_payload=True,
        )

    def _shard_size(self, path: Path) -> int:
        """Features of the vectors, from the shard's own settings."""
        size: int = json.loads((path / "edge_config.json").read_text("utf-8"))["vectors"][""]["size"]
        return size

    def _stored_ids(self) -> set[str]:
        ids: set[str] = set()
        offset = None
        while True:
            request = self._edge.ScrollRequest(limit=_BATCH, offset=offset, with_payload=True)
            records, offset = self._shard.scroll(request)
            ids.update(record.payload[PAYLOAD] for record in records)
            if offset is None:
                return ids


def _hits(points: list[Any]) -> list[Hit]:
    return [Hit(point.payload[PAYLOAD], float(point.score)) for point in points]
