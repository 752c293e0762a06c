"""Dense and BM25 rankings of 50, fused by reciprocal rank: one call, against a library for each part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from bench.peers import find_peer
from bench.rows import Measurement
from bench.suites.retrieval.dense import NUMPY, TORCH, partition
from bench.suites.retrieval.lexical import our_index, peer_index
from bench.suites.retrieval.synthetic import QUERY_TERMS, K, Vectors, terms, unit, vectors
from bench.timing import paired_seconds
from pss_engine.ops import retrieve_topk
from pss_engine.retrieval.search import shares_of

SIZES = (1_000, 10_000, 100_000)
NUM_QUERIES = (1, 8, 64)
DEPTH = 50
CONSTANT = 60


class Ours:
    """One call of the op for all queries: both rankings, fused."""

    def __init__(self, size: int, kind: str) -> None:
        self._vectors, self._bm25, self._kind = vectors(size), our_index(size), kind
        self._ranks = torch.arange(size, dtype=torch.int32)

    def search(self, queries: Tensor, texts: Sequence[str]) -> list[list[int]]:
        count = len(texts)
        groups = torch.arange(count, dtype=torch.int32).repeat(2)
        shares = shares_of(DEPTH, CONSTANT, (1.0, 1.0), count)
        masks = torch.full((count,), -1, dtype=torch.int32)
        dense, sparse = self._vectors.search(queries, self._kind), self._bm25.sparse(texts)
        rows: list[list[int]] = retrieve_topk(
            self._ranks, dense, sparse, groups, shares, None, masks, K
        ).passages.tolist()
        return rows


def fuse(dense: np.ndarray, lexical: np.ndarray) -> list[list[int]]:
    """Reciprocal rank fusion, as one writes it in Python."""
    fused = []
    for rankings in zip(dense.tolist(), lexical.tolist(), strict=True):
        scores: dict[int, float] = {}
        for ranking in rankings:
            for rank, row in enumerate((row for row in ranking if row >= 0), 1):
                scores[row] = scores.get(row, 0.0) + 1 / (CONSTANT + rank)
        fused.append(sorted(scores, key=lambda row: (-scores[row], row))[:K])
    return fused


def run(quick: bool) -> Iterator[Measurement]:
    for size in SIZES[:2] if quick else SIZES:
        lexical, held = peer_index(size), vectors(size)
        parts = dense_parts(held)
        ours = {f"pss_engine-{kind}": Ours(size, kind) for kind in ("int8", "float32")}
        for num_queries in NUM_QUERIES:
            queries, words = unit(num_queries, 2), terms(num_queries, QUERY_TERMS, 4)
            texts = [" ".join(query) for query in words]
            calls: dict[str, Callable[[], list[list[int]]]] = {
                name: (lambda o=own, q=queries, t=texts: o.search(q, t)) for name, own in ours.items()
            }
            if lexical is not None:
                for part, search in parts.items():
                    calls[f"{part}+{lexical[0]} rrf".replace(" ", "-")] = (
                        lambda s=search, q=queries, w=words, p=lexical[1]: fuse(s(q), p.search(w, DEPTH))
                    )
            found = {backend: call() for backend, call in calls.items()}
            params = {"passages": size, "queries": num_queries, "depth": DEPTH, "k": K}
            for backend, samples in paired_seconds(calls, 5 if size * num_queries > 1_000_000 else 9).items():
                checked = _agreement(found[backend], found["pss_engine-float32"])
                yield Measurement("hybrid", params, backend, "seconds", "s", samples, checked)


def dense_parts(held: Vectors) -> dict[str, Callable[[Tensor], np.ndarray]]:
    matrix = held.float32.numpy()
    parts: dict[str, Callable[[Tensor], np.ndarray]] = {
        NUMPY: lambda q: partition(q.numpy(), matrix, DEPTH),
        TORCH: lambda q: (q @ held.float32.T).topk(DEPTH, dim=1).indices.numpy(),
    }
    if (faiss := find_peer("faiss_flat")) is not None:
        flat = faiss.Flat(matrix)
        parts[faiss.NAME] = lambda q: flat.search(q.numpy(), DEPTH)
    return parts


def _agreement(found: list[list[int]], expected: list[list[int]]) -> bool | str:
    shared = sum(len(set(a) & set(b)) for a, b in zip(found, expected, strict=True)) / (K * len(found))
    return True if shared == 1 else f"{100 * shared:.1f} % of the passages are those of float32"
