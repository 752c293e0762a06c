"""Searching: dense, lexical and fused top-k against others, index size and build, clue to answer prompt."""

from __future__ import annotations

from collections.abc import Iterator

from bench.rows import Measurement
from bench.suites import Options
from bench.suites.retrieval import dense, hybrid, indexing, lexical, prompt


def run(options: Options) -> Iterator[Measurement]:
    yield from dense.run(options.quick)
    yield from lexical.run(options.quick)
    yield from hybrid.run(options.quick)
    yield from indexing.run(options.quick)
    yield from prompt.run(options)
