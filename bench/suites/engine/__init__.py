"""The engine with many states: throughput, residency, idle cost, drafted steps, prefixes. One module a question."""

from __future__ import annotations

from collections.abc import Iterator

from bench.rows import Measurement
from bench.suites import MODEL, Options
from bench.suites.engine import drafting, idle, prefixes, residency, throughput
from pss_engine.models import load_model


def run(options: Options) -> Iterator[Measurement]:
    model = load_model(MODEL, device="cpu")
    for part in (idle, throughput, residency, prefixes, drafting):
        yield from part.run(model, options.quick)
