"""The default store: all vectors in this process, all of them compared."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops import DenseSearch, retrieve_topk
from pss_engine.ops.search import MAX_DEPTH
from pss_engine.retrieval.passage import Hit
from pss_engine.retrieval.quantize import store_as
from pss_engine.retrieval.search import shares_of
from pss_engine.retrieval.stores.store import check_k, check_new_ids, check_vectors, unknown_id


class MemoryStore:
    """See :class:`VectorStore`. ``vector_type``: ``float32``, ``float16`` or ``int8``."""

    def __init__(self, dim: int, vector_type: str = "float32") -> None:
        self.dim, self._kind = dim, vector_type
        self._vectors, self._scales = store_as(torch.zeros(0, dim), vector_type)
        self._ids: list[str] = []

    def __len__(self) -> int:
        return len(self._ids)

    def held(self, ids: Collection[str]) -> set[str]:
        return set(ids) & set(self._ids)

    def add(self, ids: Sequence[str], vectors: Tensor) -> None:
        check_vectors(vectors, self.dim, len(ids))
        check_new_ids(ids, self.held(ids))
        stored, scales = store_as(vectors.float(), self._kind)
        self._vectors = torch.cat([self._vectors, stored])
        if self._scales is not None and scales is not None:
            self._scales = torch.cat([self._scales, scales])
        self._ids += ids

    def remove(self, ids: Collection[str]) -> None:
        gone, known = set(ids), set(self._ids)
        if unknown := sorted(gone - known):
            raise unknown_id(unknown[0], len(self))
        kept = [row for row, passage_id in enumerate(self._ids) if passage_id not in gone]
        self._vectors = self._vectors[kept].contiguous()
        self._scales = None if self._scales is None else self._scales[kept].contiguous()
        self._ids = [self._ids[row] for row in kept]

    def search(self, queries: Tensor, k: int, among: Collection[str] | None = None) -> list[list[Hit]]:
        check_k(k)
        check_vectors(queries, self.dim)
        if not self._ids or not len(queries):
            return [[] for _ in queries]
        depth = min(k, len(self))
        if depth > MAX_DEPTH:
            raise ConfigError(f"k is {k}; a search returns at most {MAX_DEPTH}")
        vectors, scales = store_as(queries.float(), "int8" if self._scales is not None else "float32")
        only = None if among is None else set(among)
        masks = None if only is None else torch.tensor([[passage_id in only for passage_id in self._ids]])
        ranks = torch.empty(len(self), dtype=torch.int32)
        ranks[sorted(range(len(self)), key=self._ids.__getitem__)] = torch.arange(len(self), dtype=torch.int32)
        found = retrieve_topk(
            ranks,
            DenseSearch(vectors, self._vectors, self._scales),
            None,
            torch.arange(len(queries), dtype=torch.int32),
            shares_of(depth, 60.0, (1.0,), len(queries)),
            masks,
            torch.full((len(queries),), -1 if masks is None else 0, dtype=torch.int32),
            1,
        )
        scores = found.list_scores if scales is None else found.list_scores * scales[:, None]
        return [
            [Hit(self._ids[row], score) for row, score in zip(rows, values, strict=True) if row >= 0]
            for rows, values in zip(found.list_passages.tolist(), scores.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Nothing is written."""
