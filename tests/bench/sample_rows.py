"""Sample rows, shared by the tests of the bench harness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.rows import Measurement, Row, Stamp

CPU = {"name": "A Processor", "cores": 2, "isa": "avx2", "memory": 8 * 2**30, "driver": "", "threads": 2}


def stamp(run: str = "run-1", suite: str = "lora") -> Stamp:
    return Stamp(
        suite, run, {"cpu": CPU}, {"torch": "2.0"}, "a" * 40, f"python -m bench {suite}", "2026-01-02T03:04:05"
    )


def sample_row(
    samples: Sequence[float] = (1e-3, 2e-3, 3e-3),
    *,
    run: str = "run-1",
    backend: str = "torch",
    metric: str = "seconds",
    unit: str = "s",
    params: dict[str, Any] | None = None,
    **more: Any,
) -> Row:
    found = Measurement(
        "an op", params or {"rank": 8}, backend, metric, unit, samples, more.pop("checked", True), **more
    )
    return Row.of(found, stamp(run))
