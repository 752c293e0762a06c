"""Histories to stored states: what is there is left, what stops goes on, what says too little is learned further."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine
from pss_engine.errors import ConfigError, SessionNotFound
from pss_engine.session import ReadoutCheck, ReadoutGate, StateWriting, with_proposals
from pss_engine.session.readout import key_terms
from pss_engine.state import StateStore
from pss_engine.writer import History, SessionTargets, WriteJob, Writer, WriterConfig, extract_targets
from tests.tiny import tiny_model

CONFIG = WriterConfig(rank=4, alpha=8.0, chunk_tokens=32, min_lm_steps=2, readout_steps=3)
# enough for a tiny model to say its clue
THOROUGH = WriterConfig(
    rank=8, alpha=16.0, chunk_tokens=32, min_lm_steps=1, readout_steps=60, readout_learning_rate=1e-2
)


def job(session, text="Plan B with valve 7.", clue="valve7"):
    return WriteJob(session, History.of([{"role": "user", "content": text}]), SessionTargets(clue))


@pytest.fixture
def writing(tmp_path):
    def make(config=CONFIG, gate=None):
        model = tiny_model()
        engine = Engine(model, EngineConfig(num_state_slots=2, max_rank=8, kv_cache_bytes=1 << 22))
        return StateWriting(engine, StateStore(tmp_path / "store"), Writer(model, config), gate, max_readout_tokens=12)

    return make


def test_states_are_stored_with_their_readouts_and_found_again(writing):
    work = writing()
    first = work.write([job("a"), job("b", clue="pump9")])
    assert [stored.new for stored in first] == [True, True]
    assert all(stored.record.meta.readout_token_ids for stored in first)
    again = writing().write([job("a"), job("b", clue="pump9")])
    assert [stored.new for stored in again] == [False, False]
    assert [s.record.digest for s in again] == [s.record.digest for s in first]
    changed = writing().write([job("a", text="Plan C."), job("b", clue="pump9")])
    assert [stored.new for stored in changed] == [True, False]


def test_a_batch_that_is_stopped_goes_on_where_it_was(writing, tmp_path):
    jobs = [job(name, clue=f"valve{i}7") for i, name in enumerate("abcd")]

    def stop(stored):
        if stored.session_id == "b":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writing().write(jobs, on_stored=stop, max_sessions=1)
    assert StateStore(tmp_path / "store").sessions() == ["a", "b"]
    steps = []
    resumed = writing().write(jobs, lambda job, *_: steps.append(job.session_id), max_sessions=1)
    assert [stored.new for stored in resumed] == [False, False, True, True]
    assert set(steps) == {"c", "d"}


def test_a_session_that_comes_twice_is_refused_before_anything_is_written(writing, tmp_path):
    with pytest.raises(ConfigError, match="session a comes twice"):
        writing().write([job("a"), job("a", clue="other")])
    assert StateStore(tmp_path / "store").sessions() == []


def test_a_readout_that_misses_its_clue_is_flagged_and_learned_further_within_its_budget(writing):
    gate = ReadoutGate(min_recall=1.0, max_retries=2, retry_steps=2)
    steps = []
    work = writing(gate=gate)
    (stored,) = work.write([job("a")], lambda job, phase, done, total, loss: steps.append((phase, total)))
    check = stored.record.meta.readout_check
    assert (check["passed"], check["missed"], check["recall"]) == (False, ["valve7"], 0.0)
    assert steps.count(("readout", 2)) == 4 and ("history", 2) in steps  # two rounds of two, the history once
    assert work.is_stored(job("a"))


def test_a_readout_that_says_its_clue_passes_and_costs_nothing_more(writing):
    (stored,) = writing(THOROUGH, ReadoutGate(min_recall=1.0, max_retries=3)).write([job("a")])
    assert stored.record.meta.readout_check == {"recall": 1.0, "missed": [], "passed": True, "attempts": 1}
    assert "valve7" in stored.record.meta.readout


def test_a_retry_saves_a_state_that_was_nearly_there(writing):
    short = WriterConfig.from_dict({**THOROUGH.to_dict(), "readout_steps": 4})
    (stored,) = writing(short, ReadoutGate(min_recall=1.0, max_retries=3, retry_steps=60)).write([job("a")])
    check = stored.record.meta.readout_check
    assert check["passed"] and check["attempts"] > 1


def test_a_state_goes_on_with_new_turns_and_leaves_the_old_clue(writing, tmp_path):
    work = writing()
    with pytest.raises(SessionNotFound):
        work.go_on("a", job("a").history)
    (first,) = work.write([job("a")])
    more = History.of([{"role": "user", "content": "Now plan D."}])
    steps = []
    second = work.go_on("a", more, SessionTargets("planD4"), lambda job, phase, done, total, loss: steps.append(phase))
    assert second.record.meta.parent == first.record.digest
    assert (second.record.meta.clue, second.record.meta.negative_clue) == ("planD4", "valve7")
    assert steps.count("history") == 1  # one update for the one new chunk
    assert [v.digest for v in StateStore(tmp_path / "store").log("a")] == [first.record.digest, second.record.digest]


@pytest.mark.parametrize(
    ("readout", "missed"),
    [
        ("heron-lidar-v3 route b2", ()),
        ("HERON-LIDAR-V3 and b2, route", ()),
        ("heron-lidar", ("heron-lidar-v3", "route", "b2")),
    ],
)
def test_the_check_looks_for_the_key_terms_of_the_clue(readout, missed):
    check = ReadoutCheck.of(readout, "heron-lidar-v3 on route B2", ReadoutGate(), 1)
    assert check.missed == missed and check.passed == (not missed)
    assert key_terms("a 7 of Route route B") == ["7", "route"]


@pytest.mark.parametrize("field", [{"min_recall": 1.5}, {"max_retries": -1}, {"retry_steps": 0}])
def test_a_gate_that_makes_no_sense_is_refused(field):
    with pytest.raises(ConfigError, match=next(iter(field))):
        ReadoutGate(**field)


def test_what_the_base_model_names_counts_among_the_words_of_the_history(monkeypatch):
    engine = Engine(tiny_model(), EngineConfig(num_state_slots=1, max_rank=1, kv_cache_bytes=1 << 22))
    turns = [{"role": "user", "content": text} for text in ("old oldpump", "then oldpump", "now alpha1 beta22 gamma33")]
    plain = WriteJob("plain", History.of(turns))
    given = job("given")
    real = engine.generate

    def named(requests):
        (request,) = requests  # jobs with targets of their own are not asked about
        assert request.session is None and "gamma33" in request.prompt[0]["content"]
        (output,) = real([request])
        return [replace(output, text="It is gamma33, and delta44.")]

    monkeypatch.setattr(engine, "generate", named)
    better, same = with_proposals(engine, [plain, given])
    assert same is given
    assert better.targets_from == "base model and words of the history"
    words = extract_targets(plain.history.turns, len).clue.split()
    assert "gamma33" in better.targets.clue.split() and "delta44" not in better.targets.clue
    assert better.targets != extract_targets(plain.history.turns, len) or "gamma33" in words


def test_a_state_says_that_the_base_model_was_asked(writing, tmp_path):
    work = writing()
    asking = StateWriting(work._engine, StateStore(tmp_path / "other"), work.writer, ask_base=True)
    (stored,) = asking.write([WriteJob("a", job("a").history)])
    assert stored.record.meta.targets["source"] == "base model and words of the history"
    assert stored.record.meta.clue
    assert not asking.write([WriteJob("a", job("a").history)])[0].new
