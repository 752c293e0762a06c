"""What calls are charged equals a slow recount from the cache's tensors, after every step, whatever happens in it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.kv import CallUsage, KVLedger
from tests.engine.adapters import random_state
from tests.engine.recount import Peaks, poison, seen
from tests.tiny import tiny_model

COMMON = "one instruction that every session begins with, longer than a few blocks; "
SESSIONS = [None, "s0", "s1", "s2"]


def engine_of(**config):
    """A tight engine: few blocks, so that prefixes are evicted and calls preempted; drafts are mostly wrong."""
    limits = {"kv_cache_bytes": 90_000, "block_size": 4, "num_state_slots": 2, "max_num_seqs": 5}
    engine = Engine(tiny_model(), EngineConfig(**{**limits, "max_batched_tokens": 24, **config}))
    for i in range(3):
        state = random_state(tiny_model(), f"s{i}", seed=i)
        readout = tuple(random.Random(i).choices(range(3, 250), k=20))
        engine.add_state(replace(state, meta=replace(state.meta, readout="r", readout_token_ids=readout)))
    return engine


def some_request(draw, number):
    text = COMMON[: draw.randint(8, len(COMMON))] + "xyz"[draw.randint(0, 2)] * draw.randint(0, 12)
    params = SamplingParams(max_new_tokens=draw.randint(1, 30), ignore_eos=True)
    session = draw.choice(SESSIONS)
    return Request(
        text, params, session=session, agent=f"agent-{number % 3}", query=f"q{number // 4}", usage_session="base"
    )


class Recount:
    """Watches an engine: what its calls hold before each forward and after each step."""

    def __init__(self, engine):
        self.engine, self.now, self.peaks = engine, 0, {}
        engine.memory.ledger._clock_ns = lambda: self.now * 10**9
        run = engine._runner.run

        def watched(chunks):
            self.look()
            return run(chunks)

        engine._runner.run = watched
        poison(engine)

    def look(self):
        engine = self.engine
        engine.check()
        found = seen(engine)
        for call_id, entry in found.items():
            account = engine.memory.ledger._live[call_id]
            assert (account.logical, account.allocated, account.exclusive) == (
                entry.logical,
                entry.allocated,
                entry.exclusive,
            )
            # the longest holder pays the rest of a division: less than a byte for each holder
            assert abs(sum(account.charged) - entry.fraction) <= 5 * max(1, entry.num_shared_blocks)
            peaks = self.peaks.setdefault(call_id, Peaks())
            for name in ("logical", "allocated", "exclusive", "fraction"):
                setattr(peaks, name, max(getattr(peaks, name), getattr(entry, name)))
            peaks.last = entry
        ledger, memory = engine.memory.ledger, engine.memory
        assert ledger.charged_bytes == memory.bytes_in_use
        assert ledger.charged_bytes + memory.bytes_cached == memory.bytes_occupied
        for owner in ("query", "session", "agent", "group"):
            assert sum(ledger.charges(owner).values()) == ledger.charged_bytes
        return found

    def step(self):
        outputs = self.engine.step()
        self.look()
        poison(self.engine)
        charges = self.engine.memory.ledger.charges("call_id")
        for call_id, charged in charges.items():
            self.peaks[call_id].byte_seconds += charged
        self.now += 1
        return outputs

    def compare(self, usage):
        peaks = self.peaks.pop(usage.call_id, Peaks())
        assert usage.kv_peak_bytes_allocated == peaks.allocated
        assert usage.kv_byte_seconds == peaks.byte_seconds
        assert usage.kv_peak_bytes >= peaks.logical  # the tokens of the last step are stored after the last look
        assert usage.kv_peak_bytes_exclusive >= peaks.exclusive
        assert usage.kv_peak_bytes_shared_fraction >= int(peaks.fraction) - 50
        assert usage.kv_end_bytes_exclusive <= usage.kv_end_bytes_shared_fraction <= usage.kv_end_bytes_allocated
        assert usage.kv_end_bytes_allocated - usage.kv_end_bytes == usage.kv_rounding_bytes
        assert usage.kv_end_bytes <= usage.kv_peak_bytes <= usage.kv_peak_bytes_allocated
        assert usage.kv_peak_bytes <= usage.kv_declared_bytes


@pytest.mark.parametrize("seed", range(5))
def test_figures_equal_the_recount_after_every_step(seed):
    draw, engine = random.Random(seed), engine_of()
    recount, added, ended = Recount(engine), 0, []
    while added < 30 or engine.num_unfinished:
        while added < 30 and engine.num_unfinished < 7 and draw.random() < 0.7:
            engine.add(some_request(draw, added))
            added += 1
        if engine.num_unfinished and draw.random() < 0.04:
            ended.append(engine.abort(draw.choice(list(engine._live))))
        if draw.random() < 0.03:
            engine.memory.forget_prefixes()
        outputs = recount.step()
        if not outputs and not engine.num_running:
            engine.slots.wait(0.1)
        ended += outputs
    for output in ended:
        recount.compare(output.usage)
    counters, usages = engine.counters, [output.usage for output in ended]
    assert counters.num_preemptions and counters.num_drafted_tokens > counters.num_accepted_tokens
    assert counters.num_aborted and sum(usage.kv_reused_blocks for usage in usages)
    assert sum(pool.num_evictions for pool in engine.memory.pools.values())
    assert engine.memory.ledger.num_live_calls == engine.memory.ledger.charged_bytes == 0
    assert engine.memory.bytes_in_use == 0
    assert sum(totals.num_calls for totals in engine.memory.ledger.totals.agents.values()) == 30


def test_blocks_of_rejected_drafts_are_given_back_at_once():
    engine = engine_of(max_draft_tokens=8, kv_cache_bytes=2**20)
    engine.add(Request("abc", SamplingParams(max_new_tokens=20, ignore_eos=True), session="s0"))
    while engine.num_unfinished:
        engine.step()
        for sequence in engine._live.values():
            for table in sequence.kv.tables.values():
                assert len(table.blocks) == -(-sequence.num_stored // 4)
    assert engine.counters.num_drafted_tokens > engine.counters.num_accepted_tokens


class NoLedger(KVLedger):
    """An engine's ledger that keeps no books."""

    def _nothing(self, *args, **kwargs):
        return None

    open = allocated = reused = stored = released = preempted = _nothing

    def close(self, call_id, generated_tokens, blocks):
        return CallUsage(call_id)


def waves(engine, seed=5):
    draw = random.Random(seed)
    return [engine.generate([some_request(draw, 4 * wave + i) for i in range(4)]) for wave in range(4)]


def test_accounting_changes_no_output(tmp_path):
    plain = engine_of(audit_steps=0)
    plain.memory.ledger, plain.memory.check = NoLedger(plain.memory.geometry), lambda live: None
    watched = engine_of(audit_steps=1, kv_timeline=str(tmp_path / "timeline.jsonl"))
    found = [[[o.token_ids for o in wave] for wave in waves(engine)] for engine in (plain, watched)]
    assert found[0] == found[1]
    assert watched.counters.num_audits > 10
    assert watched.counters.num_audit_alarms == 0


def test_the_same_run_gives_the_same_figures_twice():
    figures = []
    for _ in range(2):
        engine = engine_of(num_state_slots=3)
        for session in ("s0", "s1", "s2"):  # loads take their time; with all states resident no step waits for one
            engine.generate([Request("warm", SamplingParams(max_new_tokens=1), session=session)])
        recount = Recount(engine)
        for request in [some_request(random.Random(9), number) for number in range(8)]:
            engine.add(request)
        outputs = []
        while engine.num_unfinished:
            outputs += recount.step()
        figures.append([output.usage.to_dict() for output in outputs])
    assert figures[0] == figures[1]
    assert len(figures[0]) == 8
