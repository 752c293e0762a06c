"""Six agents against single calls: on multi-hop questions, and with session states that give the clues."""

from __future__ import annotations

from collections.abc import Iterator

from bench.rows import Measurement
from bench.suites import Options
from bench.suites.agents import questions, sessions


def run(options: Options) -> Iterator[Measurement]:
    yield from questions.run(options)
    yield from sessions.run(options)
