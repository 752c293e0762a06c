"""Exact dense top-k: one pass over the vectors, against libraries that hold them in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from bench.environment import MemoryRead
from bench.peers import find_peer
from bench.rows import Measurement
from bench.suites.retrieval.synthetic import DIM, VECTOR_TYPES, K, Vectors, unit, vectors
from bench.timing import paired_seconds, quantiles
from pss_engine.ops import DenseSearch, Retrieved, retrieve_topk
from pss_engine.retrieval.search import shares_of

SIZES = (1_000, 10_000, 100_000, 1_000_000)
NUM_QUERIES = (1, 8, 64)
# Where a peer takes minutes to build or seconds to answer, its row is left out.
MAX_QDRANT = 10_000
MAX_CHECKED = 100_000
NUMPY, TORCH = f"numpy {np.__version__}", f"torch {torch.__version__}"


def run(quick: bool) -> Iterator[Measurement]:
    memory = MemoryRead("cpu")
    for size in SIZES[:3] if quick else SIZES:
        held = vectors(size)
        peers = _peers(held)
        for num_queries in NUM_QUERIES:
            yield from _case(held, num_queries, peers, memory, size)
        vectors.cache_clear()


def top(search: DenseSearch, k: int = K, backend: str | None = None) -> Retrieved:
    """Each query as a ranking of its own."""
    count = len(search.queries)
    shares = shares_of(k, 60.0, (1.0,), count)
    ranks = torch.arange(len(search.vectors), dtype=torch.int32)
    lists, masks = torch.arange(count, dtype=torch.int32), torch.full((count,), -1, dtype=torch.int32)
    found: Retrieved = retrieve_topk(ranks, search, None, lists, shares, None, masks, 1, backend=backend)
    return found


def partition(queries: np.ndarray, held: np.ndarray, k: int) -> np.ndarray:
    """numpy's way: all scores, then the k highest, then their order."""
    scores = queries @ held.T
    rows = np.argpartition(scores, len(held) - k, axis=1)[:, len(held) - k :]
    order = np.argsort(-np.take_along_axis(scores, rows, 1), axis=1)
    return np.take_along_axis(rows, order, 1)


def _peers(held: Vectors) -> dict[str, Callable[[Tensor], object]]:
    matrix = held.float32.numpy()
    found: dict[str, Callable[[Tensor], object]] = {
        NUMPY: lambda q: partition(q.numpy(), matrix, K),
        TORCH: lambda q: (q @ held.float32.T).topk(K, dim=1).indices.numpy(),
    }
    if (faiss := find_peer("faiss_flat")) is not None:
        flat = faiss.Flat(matrix)
        found[faiss.NAME] = lambda q: flat.search(q.numpy(), K)
    if len(matrix) <= MAX_QDRANT and (qdrant := find_peer("qdrant_embedded")) is not None:
        shard = qdrant.Shard(matrix)
        found[qdrant.NAME] = lambda q: shard.search(q.numpy(), K)
    return found


def _case(
    held: Vectors, num_queries: int, peers: dict[str, Callable[[Tensor], object]], memory: MemoryRead, size: int
) -> Iterator[Measurement]:
    queries = unit(num_queries, 2)
    exact = partition(queries.numpy(), held.float32.numpy(), K)
    params = {"passages": size, "queries": num_queries, "dim": DIM, "k": K}
    calls: dict[str, Callable[[], object]] = {name: (lambda s=search: s(queries)) for name, search in peers.items()}
    checked: dict[str, bool | str] = {
        name: _differing(np.asarray(search(queries)), exact) for name, search in peers.items()
    }
    num_bytes = dict.fromkeys(calls, held.float32.nbytes)
    for kind in VECTOR_TYPES:
        name = f"pss_engine-{kind}"
        calls[name] = lambda kind=kind: top(held.search(queries, kind))
        found = top(held.search(queries[:4], kind))
        reference = top(held.search(queries[:4], kind), backend="torch") if size <= MAX_CHECKED else found
        same = all(torch.equal(a, b) for a, b in zip(found, reference, strict=True))
        checked[name] = same if size <= MAX_CHECKED else "equal to the reference at 100,000 passages and below"
        num_bytes[name] = held.stored[kind][0].nbytes
        rows = top(held.search(queries, kind)).list_passages.numpy()
        shared = [len(set(a) & set(b)) / K for a, b in zip(rows.tolist(), exact.tolist(), strict=True)]
        yield Measurement(
            "dense",
            params,
            name,
            "overlap_with_float32",
            "share",
            [sum(shared) / len(shared)],
            checked[name],
            num_queries,
        )
    repeats = 3 if size * num_queries > 10_000_000 else 9
    seconds = paired_seconds({**calls, "memory": memory}, repeats)
    limit = memory.gbps(seconds.pop("memory"))
    for name, samples in seconds.items():
        moved = num_bytes[name] / quantiles(samples)[1] / 1e9
        yield Measurement("dense", params, name, "seconds", "s", samples, checked[name], gbps=moved, limit_gbps=limit)


def _differing(rows: np.ndarray, exact: np.ndarray) -> bool | str:
    """Whether the same passages were found; sums of another order may swap neighbours."""
    wrong = sum(set(a) != set(b) for a, b in zip(rows.tolist(), exact.tolist(), strict=True))
    return True if not wrong else f"passages of {wrong} of {len(exact)} queries differ from numpy's"
