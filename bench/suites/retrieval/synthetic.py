"""Vectors and passages of the right shape, drawn with a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from pss_engine.ops import DenseSearch
from pss_engine.retrieval.quantize import store_as

DIM = 384
PASSAGE_TERMS = 60
QUERY_TERMS = 6
VOCABULARY = 50_000
K = 10
VECTOR_TYPES = ("int8", "float16", "float32")


@dataclass(frozen=True, eq=False)
class Vectors:
    """Unit vectors [N, DIM], around 1,000 centres as those of texts are around their topics."""

    float32: Tensor

    @cached_property
    def stored(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        return {kind: store_as(self.float32, kind) for kind in VECTOR_TYPES}

    def search(self, queries: Tensor, kind: str) -> DenseSearch:
        """Float32 queries, as an encoder gives them, to what the op takes."""
        vectors, scales = self.stored[kind]
        return DenseSearch(store_as(queries, "int8" if kind == "int8" else "float32")[0], vectors, scales)


def unit(rows: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(1000, DIM, generator=torch.Generator().manual_seed(91))
    chosen = torch.randint(0, 1000, (rows,), generator=draw)
    vectors = centres[chosen] + torch.randn(rows, DIM, generator=draw)
    return torch.nn.functional.normalize(vectors, dim=1)


@cache
def vectors(rows: int) -> Vectors:
    return Vectors(unit(rows, 1))


def terms(rows: int, length: int, seed: int) -> list[list[str]]:
    """Texts of half to three halves of ``length`` terms; term i is drawn with a probability of about 1 / i."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(length // 2, length + length // 2 + 1, rows)
    ranks = np.exp(draw.random(lengths.sum()) * np.log(VOCABULARY)).astype(np.int64)
    names = np.array([f"t{i}" for i in range(VOCABULARY + 1)])[ranks].tolist()
    ends = np.cumsum(lengths).tolist()
    return [names[end - count : end] for end, count in zip(ends, lengths.tolist(), strict=True)]
