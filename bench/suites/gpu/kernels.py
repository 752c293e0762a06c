"""Bytes that a kernel must move over the time it takes, beside what a copy moves; every backend that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.rows import Measurement
from bench.suites.gpu.model import Shape
from bench.timing import paired_seconds, quantiles
from pss_engine.models import LoadedModel
from pss_engine.ops import LoraSlice, add_rms_norm, argmax, lora_slices, paged_attention, silu_mul
from pss_engine.ops.device import copy_gbps
from pss_engine.ops.dispatch import REFERENCE, Op

RANK = 32
CALLS = 20
TOLERANCE = 3e-2


def synchronize_of(device: torch.device) -> Callable[[], object]:
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


@dataclass(frozen=True)
class Case:
    """One call: ``run(backend)`` returns what is compared; num_bytes is what it must move at least."""

    op: Op
    params: dict[str, object]
    num_bytes: int
    run: Callable[[str], Tensor]


def run(model: LoadedModel, shape: Shape, quick: bool) -> Iterator[Measurement]:
    device, dtype = model.device, model.dtype
    limit = copy_gbps(device)
    yield Measurement(
        "copy", {}, "torch", "bandwidth", "ratio", [1.0], "the limit itself", gbps=limit, device=device.type
    )
    for case in cases(shape, device, dtype, quick):
        yield from _measure(case, device, limit)


def _measure(case: Case, device: torch.device, limit: float) -> Iterator[Measurement]:
    expected = case.run(REFERENCE).float()
    backends = [backend for backend in case.op.backends(device.type) if backend != REFERENCE] or [REFERENCE]
    for backend in backends:
        found, checked = case.run(backend).float(), True
        scale = max(1.0, expected.abs().max().item())
        if not torch.allclose(found, expected, rtol=0, atol=TOLERANCE * scale):
            raise RuntimeError(f"{case.op.name} on {backend} differs from the reference: it is not timed")
        repeated = {backend: lambda b=backend: [case.run(b) for _ in range(CALLS)]}
        seconds = paired_seconds(repeated, 7, warmup=1, synchronize=synchronize_of(device))[backend]
        samples = [s / CALLS for s in seconds]
        gbps = case.num_bytes / quantiles(samples)[1] / 1e9
        yield Measurement(
            case.op.name,
            case.params,
            backend,
            "seconds",
            "s",
            samples,
            checked,
            gbps=gbps,
            limit_gbps=limit,
            device=device.type,
        )


def cases(shape: Shape, device: torch.device, dtype: torch.dtype, quick: bool) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(91)

    def randn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device, dtype)

    for num_rows in (1, 8) if quick else (1, 8, 32, 64):
        yield _lora(shape, randn, num_rows)
        yield _attention(shape, randn, num_rows, 4096 if device.type == "cuda" else 64)
        x, residual, weight = (
            randn(num_rows, shape.hidden_size),
            randn(num_rows, shape.hidden_size),
            randn(shape.hidden_size),
        )
        rows = {"rows": num_rows, "hidden": shape.hidden_size}
        size = x.element_size()
        yield Case(
            add_rms_norm,
            rows,
            4 * x.numel() * size,
            lambda b, a=(x, residual, weight): add_rms_norm(*a, 1e-6, backend=b)[0],
        )
        gate_up = randn(num_rows, 2 * shape.intermediate_size)
        width = {"rows": num_rows, "width": shape.intermediate_size}
        num_bytes = gate_up.numel() * size * 3 // 2
        yield Case(silu_mul, width, num_bytes, lambda b, g=gate_up: silu_mul(g, backend=b))
        logits = randn(num_rows, shape.vocab_size).float()
        words = {"rows": num_rows, "vocabulary": shape.vocab_size}
        yield Case(argmax, words, logits.numel() * 4, lambda b, g=logits: argmax(g, backend=b))


def _lora(shape: Shape, randn: Callable[..., Tensor], num_rows: int) -> Case:
    """q, k and v of one layer, a state for each row."""
    hidden, kv = shape.hidden_size, shape.num_key_value_heads * shape.head_dim
    x, y = randn(num_rows, hidden), randn(num_rows, hidden + 2 * kv)
    ones = torch.ones(num_rows, device=x.device)
    ranks = torch.full((num_rows,), RANK, dtype=torch.int32, device=x.device)
    slices, column, num_bytes = [], 0, 0
    for out in (hidden, kv, kv):
        a, b = randn(num_rows, RANK, hidden) / hidden**0.5, randn(num_rows, out, RANK) / RANK**0.5
        slices.append(LoraSlice(a, b, ones, ranks, column))
        column, num_bytes = column + out, num_bytes + (a.numel() + b.numel()) * a.element_size()
    slots = torch.arange(num_rows, dtype=torch.int32, device=x.device)

    def call(backend: str) -> Tensor:
        out = y.clone()
        lora_slices(out, x, slices, slots, backend=backend)
        return out

    return Case(lora_slices, {"linear": "qkv", "rank": RANK, "rows": num_rows, "states": num_rows}, num_bytes, call)


def _attention(shape: Shape, randn: Callable[..., Tensor], num_rows: int, context: int) -> Case:
    block, heads, dim = 16, shape.num_key_value_heads, shape.head_dim
    per_row = context // block
    caches = [randn(num_rows * per_row, block, heads, dim) for _ in range(2)]
    q = randn(num_rows, shape.num_attention_heads, dim)

    def int32(values: Tensor) -> Tensor:
        return values.int().to(q.device)

    tables = int32(torch.randperm(num_rows * per_row, generator=torch.Generator().manual_seed(91))).view(num_rows, -1)
    starts, lens = int32(torch.arange(num_rows + 1)), int32(torch.full((num_rows,), context))
    num_bytes = 2 * caches[0].numel() * q.element_size()
    return Case(
        paged_attention,
        {"rows": num_rows, "context": context, "heads": f"{shape.num_attention_heads}/{heads} x {dim}"},
        num_bytes,
        lambda b: paged_attention(q, *caches, tables, starts, lens, dim**-0.5, backend=b),
    )
