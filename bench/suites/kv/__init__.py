"""What calls hold in KV: three ways to answer, sessions with and without the cut, block sizes, cost of counting."""

from __future__ import annotations

from collections.abc import Iterator

from bench.rows import Measurement
from bench.suites import MODEL, Options
from bench.suites.kv import arms, cost, cut, rounding
from bench.suites.kv.questions import load
from pss_engine.models import load_model


def run(options: Options) -> Iterator[Measurement]:
    questions = load(options.data, 12 if options.quick else 60)
    model = load_model(MODEL, device="cpu")
    yield from cost.run(model)
    yield from cut.run(model, options.files)
    asked = arms.ask(model, questions)
    yield from arms.rows(asked)
    yield from rounding.rows(asked)
