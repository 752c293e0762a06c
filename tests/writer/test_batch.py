"""Many sessions in one batch: each learns what it would learn alone, and fails alone."""

from __future__ import annotations

import pytest
import torch

from pss_engine.errors import CapacityError, ConfigError
from pss_engine.ops import linear
from pss_engine.writer import History, SessionTargets, WriteJob, Writer, WriterConfig
from pss_engine.writer.factor_math import FactorMath
from pss_engine.writer.learner import LearningFailed
from pss_engine.writer.row_sets import RowSet
from pss_engine.writer.trainer import Trainer
from tests.tiny import FAMILIES, tiny_model

CONFIG = WriterConfig(rank=4, alpha=8.0, chunk_tokens=16, min_lm_steps=3, readout_steps=6, readout_learning_rate=1e-2)
TEXTS = (
    ("We archived plan A. Plan B with the blue pump is current.", "plan B blue pump", "plan A red pump"),
    ("Short.", "the valve", ""),
    ("The third one is longer than the others by far, and it has a route too: C7 past the mill.", "C7 mill", "C6"),
)


def jobs(config=None):
    return [
        WriteJob(
            f"s{i}", History.of([{"role": "user", "content": text}]), SessionTargets(clue, negative), config=config
        )
        for i, (text, clue, negative) in enumerate(TEXTS)
    ]


def with_settings(**changes):
    return WriterConfig.from_dict({**CONFIG.to_dict(), **changes})


def states(written):
    assert [w.error for w in written] == [None] * len(written)
    return [w.state for w in written]


@pytest.mark.skipif("cpp" not in linear.backends("cpu"), reason="bits are promised with the compiled extension")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_session_learns_the_same_bits_whoever_is_beside_it(family):
    writer = Writer(tiny_model(family), CONFIG)
    alone = [writer.write_job(job).digest for job in jobs()]
    for sessions_at_once in (3, 2):
        batch = states(writer.write_many(jobs(), max_sessions=sessions_at_once))
        assert [state.digest for state in batch] == alone
    backwards = states(writer.write_many(jobs()[::-1], max_sessions=3))
    assert [state.digest for state in backwards[::-1]] == alone


def test_padded_sessions_learn_the_same_within_the_order_of_sums(monkeypatch):
    expected = states(Writer(tiny_model(), CONFIG).write_many(jobs(), max_sessions=3))
    monkeypatch.setattr(RowSet, "groups", property(lambda rows: [rows.padded()]))
    real = FactorMath.__init__

    def padded(math, stack, dtype):
        real(math, stack, dtype)
        math._apart = False

    monkeypatch.setattr(FactorMath, "__init__", padded)
    for sessions_at_once in (3, 2):
        found = states(Writer(tiny_model(), CONFIG).write_many(jobs(), max_sessions=sessions_at_once))
        for one, other in zip(found, expected, strict=True):
            for key, pair in one.factors.items():
                torch.testing.assert_close(pair.a, other.factors[key].a, atol=1e-3, rtol=1e-2)
                torch.testing.assert_close(pair.b, other.factors[key].b, atol=1e-3, rtol=1e-2)


def test_nothing_goes_back_through_a_negative_whose_hinge_is_zero():
    writer = Writer(tiny_model(), with_settings(margin=-100.0))
    writer.write_many(jobs())
    counters = writer.counters
    assert counters.active_hinges == 0 and counters.backward_rows < counters.forward_rows
    writer = Writer(tiny_model(), with_settings(margin=100.0))
    writer.write_many(jobs())
    assert writer.counters.backward_rows == writer.counters.forward_rows


def test_a_loss_that_is_not_finite_ends_that_session_alone():
    writer = Writer(tiny_model(), CONFIG)
    good, bad = jobs()[0], jobs(with_settings(lm_learning_rate=1e30))[2]
    written = writer.write_many([good, bad])
    assert isinstance(written[1].error, LearningFailed) and written[1].state is None
    message = str(written[1].error)
    assert "session s2" in message and "update" in message and "phase" in message and "\n" not in message
    assert written[0].state.digest == writer.write_job(good).digest


def test_out_of_memory_halves_the_batch_and_goes_on(monkeypatch):
    expected = [state.digest for state in states(Writer(tiny_model(), CONFIG).write_many(jobs()))]
    update = Trainer._update

    def small_memory(self, active, on_step):
        if len(active) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        update(self, active, on_step)

    monkeypatch.setattr(Trainer, "_update", small_memory)
    writer = Writer(tiny_model(), CONFIG)
    assert [state.digest for state in states(writer.write_many(jobs(), max_sessions=3))] == expected
    assert writer.counters.halvings == 1


def test_a_session_that_does_not_fit_alone_says_so(monkeypatch):
    def no_memory(self, active, on_step):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "_update", no_memory)
    with pytest.raises(CapacityError, match="one session does not fit"):
        Writer(tiny_model(), CONFIG).write_many(jobs())


def test_the_memory_budget_decides_how_many_learn_at_once(monkeypatch):
    seen = []
    real = Trainer.__init__
    monkeypatch.setattr(
        Trainer,
        "__init__",
        lambda self, network, config, slots: (seen.append(slots), real(self, network, config, slots))[1],
    )
    Writer(tiny_model(), CONFIG, memory_bytes=1).write_many(jobs())
    Writer(tiny_model(), CONFIG, memory_bytes=1 << 40).write_many(jobs())
    assert seen == [1, 3]


def test_every_session_reports_each_of_its_updates():
    steps = []
    written = Writer(tiny_model(), CONFIG).write_many(
        jobs(), lambda job, *step: steps.append((job.session_id, *step[:3]))
    )
    for result in written:
        mine = [step[1:] for step in steps if step[0] == result.job.session_id]
        assert mine == [
            (phase, at, total)
            for phase, total in (("history", mine[0][2]), ("readout", 6))
            for at in range(1, total + 1)
        ]
        assert [len(result.losses[phase]) for phase in ("history", "readout")] == [mine[0][2], 6]


def test_float64_masters_learn_the_same_up_to_their_precision():
    plain, stable = (Writer(tiny_model(), with_settings(stable=flag)).write_job(jobs()[0]) for flag in (False, True))
    for key, pair in plain.factors.items():
        torch.testing.assert_close(pair.b, stable.factors[key].b, atol=1e-3, rtol=1e-2)


def test_early_stop_ends_the_readout_when_the_clue_is_learned():
    done = []
    config = with_settings(readout_steps=300, early_stop_loss=1.0, margin=-100.0)
    Writer(tiny_model(), config).write_many(
        jobs(config)[:1], lambda job, phase, at, total, loss: done.append((phase, loss))
    )
    readout = [loss for phase, loss in done if phase == "readout"]
    assert len(readout) < 300 and readout[-1] < 1.0 <= min(readout[:-1])


def test_two_slots_learn_one_phase_each():
    config = with_settings(topology="dual", readout_steps=1, lm_learning_rate=1e-2)
    state = Writer(tiny_model(), config).write_job(jobs(config)[0])
    history_only = with_settings(topology="dual", objective="lm_only", lm_learning_rate=1e-2)
    first = Writer(tiny_model(), history_only).write_job(jobs(history_only)[0])
    for key, pair in state.factors.items():
        other = first.factors[key]
        assert torch.equal(pair.b[:, :2], other.b[:, :2]) and torch.equal(pair.a[:2], other.a[:2])
        assert other.b[:, 2:].count_nonzero() == 0 and pair.b[:, 2:].count_nonzero() > 0


def test_the_topmost_layers_alone_can_learn():
    config = with_settings(last_layers=1)
    state = Writer(tiny_model(), config).write_job(jobs(config)[0])
    assert state.layers == (3,)
    with pytest.raises(ConfigError, match="last_layers is 3; the model's cut leaves 2"):
        Writer(tiny_model(), with_settings(last_layers=3))


def test_a_state_goes_on_from_another():
    writer = Writer(tiny_model(), CONFIG)
    first = writer.write_job(jobs()[0])
    second = writer.write_job(WriteJob("s0", jobs()[2].history, jobs()[2].targets, parent=first))
    assert second.meta.parent == first.digest
    fresh = writer.write_job(WriteJob("s0", jobs()[2].history, jobs()[2].targets))
    assert second.digest != fresh.digest
    other = Writer(tiny_model(), with_settings(rank=2))
    with pytest.raises(ConfigError, match=r"session s0: its state has ranks \[4\]"):
        other.write_job(WriteJob("s0", jobs()[2].history, jobs()[2].targets, parent=first))


def test_sessions_of_a_batch_share_its_rank():
    with pytest.raises(ConfigError, match="session s0: rank is 2, the writer's is 4; in one batch"):
        Writer(tiny_model(), CONFIG).write_many(jobs(with_settings(rank=2, alpha=4.0)))
    assert Writer(tiny_model(), CONFIG).write_many([]) == []


def test_the_digest_of_a_job_is_that_of_all_that_decides_the_state():
    writer = Writer(tiny_model(), CONFIG)
    job = jobs()[0]
    changed = [
        jobs()[1],
        WriteJob("s0", job.history, SessionTargets("other", "")),
        WriteJob("s0", job.history, job.targets, config=with_settings(seed=7)),
    ]
    digests = [writer.digest(job), *map(writer.digest, changed)]
    assert len(set(digests)) == 4
    assert writer.digest(WriteJob("another-name", job.history, job.targets)) == digests[0]
    assert writer.write_job(job).meta.write_digest == digests[0]


def test_a_history_of_65_thousand_tokens_is_read_to_its_end():
    config = with_settings(chunk_tokens=128, min_lm_steps=1, readout_steps=1)
    turns = [{"role": "user", "content": f"{number:06d} " * 9} for number in range(1000)]
    long = WriteJob("long", History.of(turns), SessionTargets("the end"))
    seen = []
    written = Writer(tiny_model(), config).write_many(
        [long, jobs(config)[1]], lambda job, *step: seen.append((job.session_id, *step))
    )
    states(written)
    history = [step for step in seen if step[:2] == ("long", "history")]
    assert written[0].state.meta.num_history_tokens > 65_000
    assert len(history) == history[0][3] == -(-written[0].state.meta.num_history_tokens // 128)
