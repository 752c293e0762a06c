"""The plain PEFT loop learns what our writer learns, update by update: what makes their times comparable."""

from __future__ import annotations

import pytest

pytest.importorskip("peft", reason="peft is not installed (see the bench extra)")

from bench.peers import peft_writer
from bench.suites.writer import Task, Trace, check
from pss_engine.models.source import resolve
from pss_engine.writer import History, SessionTargets, WriterConfig
from tests.tiny import tiny_model, tiny_model_folder

TURNS = [
    {"role": "user", "content": "The boat Heron runs egret-12 on route B."},
    {"role": "assistant", "content": "Noted."},
]
CONFIG = WriterConfig(rank=4, alpha=8, chunk_tokens=16, min_lm_steps=5, readout_steps=4, readout_learning_rate=1e-3)


@pytest.fixture(scope="module")
def traces() -> tuple[Trace, Trace]:
    task = Task(tiny_model(), History.of(TURNS), SessionTargets("heron egret-12", "heron stereo-v2"), CONFIG)
    return task.ours(), task.peft(peft_writer, peft_writer.load(resolve(str(tiny_model_folder()))))


def test_losses_agree_at_every_update(traces: tuple[Trace, Trace]) -> None:
    ours, other = traces
    assert ours.losses() == pytest.approx(other.losses(), abs=1e-3)
    assert check(ours, other) is True


def test_updates_are_counted_and_timed_by_phase(traces: tuple[Trace, Trace]) -> None:
    for trace in traces:
        assert {phase: len(updates) for phase, updates in trace.updates.items()} == {"history": 5, "readout": 4}
        assert 0 < sum(seconds for updates in trace.updates.values() for _, seconds in updates) <= trace.seconds


def test_losses_that_differ_are_said(traces: tuple[Trace, Trace]) -> None:
    ours, _ = traces
    other = Trace({phase: [(loss + 0.5, s) for loss, s in updates] for phase, updates in ours.updates.items()}, 1.0)
    assert check(ours, other) == "losses differ by up to 0.500 nats, 0.02 allowed"
