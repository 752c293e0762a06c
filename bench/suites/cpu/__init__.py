"""The CPU path: kernels beside the machine's limits, decoding by weight format, what a format costs in quality."""

from __future__ import annotations

from collections.abc import Iterator

from bench.rows import Measurement
from bench.suites import Options
from bench.suites.cpu import decoding, kernels, memory, quality


def run(options: Options) -> Iterator[Measurement]:
    for part in (kernels, memory, quality, decoding):
        yield from part.run(options.quick)
