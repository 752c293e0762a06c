"""The best 100 of a million vectors, beside what a copy moves: one query, and a batch of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.rows import Measurement
from bench.suites.gpu.kernels import synchronize_of
from bench.suites.gpu.model import Shape
from bench.timing import paired_seconds, quantiles
from pss_engine.models import LoadedModel
from pss_engine.ops import DenseSearch, retrieve_topk, rrf_shares
from pss_engine.ops.device import copy_gbps
from pss_engine.ops.dispatch import REFERENCE

NUM_PASSAGES = {"cuda": 1_000_000, "cpu": 2000}
CHECKED_PASSAGES = 20_000
SIZE = {"cuda": 1024, "cpu": 64}
DEPTH = 100


def run(model: LoadedModel, shape: Shape, quick: bool) -> Iterator[Measurement]:
    device = model.device
    limit, num_passages, size = copy_gbps(device), NUM_PASSAGES[device.type], SIZE[device.type]
    generator = torch.Generator(device).manual_seed(91)
    vectors = torch.randn(num_passages, size, dtype=torch.float16, device=device, generator=generator)
    for num_queries in (1, 4) if quick else (1, 32):
        queries = torch.randn(num_queries, size, device=device, generator=generator)
        few, work = arguments(queries, vectors[:CHECKED_PASSAGES]), arguments(queries, vectors)
        expected, timed = retrieve_topk(*few, backend=REFERENCE), {}
        for backend in set(retrieve_topk.backends(device.type)) - {REFERENCE}:
            found = retrieve_topk(*few, backend=backend)
            if not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
                raise RuntimeError(f"retrieve_topk on {backend} differs from the reference: it is not timed")
            timed[backend] = lambda w=work, b=backend: retrieve_topk(*w, backend=b)
        params = {"passages": num_passages, "size": size, "queries": num_queries, "depth": DEPTH}
        for backend, samples in paired_seconds(timed, 7, warmup=1, synchronize=synchronize_of(device)).items():
            yield Measurement(
                "retrieve_topk", params, backend, "seconds", "s", samples, True,
                gbps=vectors.nbytes / quantiles(samples)[1] / 1e9, limit_gbps=limit, device=device.type,
            )  # fmt: skip


def arguments(queries: torch.Tensor, vectors: torch.Tensor) -> tuple[object, ...]:
    """A group for each query, all passages allowed."""
    device, count = vectors.device, len(queries)
    ranks = torch.arange(len(vectors), dtype=torch.int32, device=device)
    groups = torch.arange(count, dtype=torch.int32, device=device)
    shares = torch.tensor([rrf_shares(DEPTH)], device=device).expand(count, DEPTH).contiguous()
    everything = torch.full((count,), -1, dtype=torch.int32, device=device)
    return ranks, DenseSearch(queries, vectors.contiguous()), None, groups, shares, None, everything, DEPTH
