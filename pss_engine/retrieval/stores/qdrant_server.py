"""A collection of a Qdrant server (extra ``qdrant``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from pss_engine.errors import BackendUnavailable, ConfigError
from pss_engine.retrieval.passage import Hit
from pss_engine.retrieval.stores.qdrant_points import PAYLOAD, SLACK, point_id, settled
from pss_engine.retrieval.stores.store import check_k, check_new_ids, check_vectors, unknown_id

_BATCH = 256


class QdrantServerStore:
    """See :class:`VectorStore`.

    Args:
        collection: created where there is none.
        url: of the server, such as ``http://localhost:6333``.
        client: a ``qdrant_client.QdrantClient`` of your own, in place of ``url``.

    Raises:
        BackendUnavailable: qdrant-client is not installed.
        ConfigError: the server does not answer, or the collection holds vectors of another size.
    """

    def __init__(self, collection: str, dim: int, url: str = "", client: Any | None = None) -> None:
        try:
            from qdrant_client import QdrantClient, models
        except ImportError:
            raise BackendUnavailable("a Qdrant server needs qdrant-client: pip install 'pss-engine[qdrant]'") from None
        if (client is None) == (not url):
            raise ConfigError("a Qdrant server is named by its url or by a client of your own; give one of them")
        self._models: Any = models
        self._collection, self.dim, self._where = collection, dim, url or "the given client"
        try:
            self._client: Any = client or QdrantClient(url=url, check_compatibility=False)
            if not self._client.collection_exists(collection):
                params = models.VectorParams(size=dim, distance=models.Distance.DOT)
                self._client.create_collection(collection, vectors_config=params)
            held: Any = self._client.get_collection(collection).config.params.vectors
        except Exception as error:  # the client passes on what its transports raise, of many kinds
            reason = " ".join(str(error).split())
            raise ConfigError(f"Qdrant at {self._where} cannot be used: {reason}") from None
        size = getattr(held, "size", None)  # None: vectors with names, which are not ours
        if size != dim:
            raise ConfigError(f"collection {collection!r} holds vectors of {size} features, the encoder gives {dim}")

    def __len__(self) -> int:
        count: int = self._client.count(self._collection, exact=True).count
        return count

    def held(self, ids: Collection[str]) -> set[str]:
        records = self._client.retrieve(self._collection, [point_id(i) for i in ids], with_payload=[PAYLOAD])
        return {record.payload[PAYLOAD] for record in records}

    def add(self, ids: Sequence[str], vectors: Tensor) -> None:
        check_vectors(vectors, self.dim, len(ids))
        check_new_ids(ids, self.held(ids))
        rows = vectors.float().tolist()
        for start in range(0, len(ids), _BATCH):
            points = [
                self._models.PointStruct(id=point_id(passage_id), vector=row, payload={PAYLOAD: passage_id})
                for passage_id, row in zip(ids[start : start + _BATCH], rows[start : start + _BATCH], strict=True)
            ]
            self._client.upsert(self._collection, points, wait=True)

    def remove(self, ids: Collection[str]) -> None:
        if unknown := sorted(set(ids) - self.held(ids)):
            raise unknown_id(unknown[0], len(self))
        self._client.delete(self._collection, [point_id(passage_id) for passage_id in ids], wait=True)

    def search(self, queries: Tensor, k: int, among: Collection[str] | None = None) -> list[list[Hit]]:
        check_k(k)
        check_vectors(queries, self.dim)
        if not len(queries):
            return []
        rows, asked = queries.float().tolist(), k + SLACK
        found = self._fetch(rows, asked, among)
        return [
            settled(hits, asked, k, partial(self._fetch_one, row, among)) for row, hits in zip(rows, found, strict=True)
        ]

    def close(self) -> None:
        self._client.close()

    def _fetch_one(self, row: list[float], among: Collection[str] | None, limit: int) -> list[Hit]:
        return self._fetch([row], limit, among)[0]

    def _fetch(self, rows: list[list[float]], limit: int, among: Collection[str] | None) -> list[list[Hit]]:
        models = self._models
        only = None
        if among is not None:
            only = models.Filter(must=[models.HasIdCondition(has_id=[point_id(passage_id) for passage_id in among])])
        params = models.SearchParams(exact=True)
        asked = [
            models.QueryRequest(query=row, limit=limit, filter=only, params=params, with_payload=[PAYLOAD])
            for row in rows
        ]
        answers = self._client.query_batch_points(self._collection, asked)
        return [[Hit(point.payload[PAYLOAD], float(point.score)) for point in answer.points] for answer in answers]
