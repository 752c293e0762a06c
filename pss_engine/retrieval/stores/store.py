"""The interface of vector stores, and what every store checks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.retrieval.passage import Hit
from pss_engine.retrieval.quantize import check_finite


class VectorStore(Protocol):
    """Vectors by id, searched by inner product.

    Searches are exact and deterministic: best first, equal scores in order of id. Wrong input raises ConfigError and
    changes nothing.

    Attributes:
        dim: features of a vector.
    """

    dim: int

    def __len__(self) -> int: ...

    def held(self, ids: Collection[str]) -> set[str]:
        """Those of ``ids`` that are stored."""
        ...

    def add(self, ids: Sequence[str], vectors: Tensor) -> None:
        """Store ``vectors`` [number of ids, dim] float32. Raises ConfigError for a NaN, a wrong shape, an id taken."""
        ...

    def remove(self, ids: Collection[str]) -> None:
        """Raises ConfigError for an id that is not stored."""
        ...

    def search(self, queries: Tensor, k: int, among: Collection[str] | None = None) -> list[list[Hit]]:
        """The ``k`` highest inner products of each of ``queries`` [B, dim]; ``among``: only these ids."""
        ...

    def close(self) -> None:
        """Write what is not written yet; the store is not used after."""
        ...


def check_vectors(vectors: Tensor, dim: int, count: int | None = None) -> None:
    """Raises ConfigError unless ``vectors`` are [count, dim] and finite."""
    if vectors.dim() != 2 or vectors.shape[1] != dim or (count is not None and len(vectors) != count):
        wanted = f"[{'B' if count is None else count}, {dim}]"
        raise ConfigError(f"vectors are {list(vectors.shape)}; the store takes {wanted}")
    check_finite(vectors)


def check_new_ids(ids: Sequence[str], taken: Collection[str]) -> None:
    """Raises ConfigError for an id that is given twice or stored already."""
    if len(set(ids)) != len(ids):
        twice = next(passage_id for i, passage_id in enumerate(ids) if passage_id in ids[:i])
        raise ConfigError(f"passage id {twice!r} is given twice")
    if known := [passage_id for passage_id in ids if passage_id in taken]:
        raise ConfigError(f"passage id {known[0]!r} is stored already; remove it first")


def check_k(k: int) -> None:
    if k < 1:
        raise ConfigError(f"k is {k}; it must be 1 or more")


def unknown_id(passage_id: str, count: int) -> ConfigError:
    return ConfigError(f"passage id {passage_id!r} is not among the {count} stored")
