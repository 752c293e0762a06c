"""Ten thousand cycles of add, run, evict and abort leave the engine as they found it."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.models import load_model
from tests.engine.adapters import random_state
from tests.tiny import save_tiny

NUM_CYCLES = 10_000
NUM_WARM_UP = 1_500
NUM_SESSIONS = 6
NUM_SLOTS = 2
MAX_RSS_GROWTH_BYTES = 16 * 2**20
SMALL = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = save_tiny(tmp_path_factory.mktemp("small"), **SMALL)
    return load_model(str(folder), num_session_layers=1, device="cpu")


@pytest.fixture
def engine(model):
    config = EngineConfig(
        kv_cache_bytes=40_000, block_size=4, num_state_slots=NUM_SLOTS, max_num_seqs=16, max_batched_tokens=64
    )
    engine = Engine(model, config)
    for i in range(NUM_SESSIONS):
        engine.add_state(random_state(model, f"s{i}", seed=i, rank=1 + i))
    return engine


def cycle(engine, num_requests, draw):
    """So many requests through the engine, in waves: some aborted while they wait or run, states coming and going."""
    ended = 0
    while ended < num_requests:
        live = []
        for _ in range(16):
            session = draw.choice([None, *(f"s{i}" for i in range(NUM_SESSIONS))])
            prompt = [draw.randrange(3, 250) for _ in range(draw.randint(1, 6))]
            params = SamplingParams(max_new_tokens=draw.randint(1, 2), ignore_eos=True)
            live.append(engine.add(Request(prompt, params, session=session)))
        for request_id in draw.sample(live, 2):
            assert engine.abort(request_id).finish_reason == "abort"
            ended += 1
        ended += len(engine.step())
        for request_id in draw.sample(live, 2):
            ended += engine.abort(request_id) is not None
        while engine.num_unfinished:
            outputs = engine.step()
            assert all(output.finish_reason == "length" for output in outputs)
            ended += len(outputs)
            if not outputs and not engine.num_running:
                engine.slots.wait(0.1)
        replaced = draw.randrange(NUM_SESSIONS)
        state = engine.states.get(f"s{replaced}").load()
        engine.remove_state(f"s{replaced}")
        engine.add_state(state)
    return ended


def rss_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def census():
    """Live objects of this package's classes, by class."""
    gc.collect()
    found = Counter(type(item) for item in gc.get_objects())
    return {kind.__qualname__: n for kind, n in found.items() if str(kind.__module__).startswith("pss_engine.")}


def house(engine):
    """What must be the same before and after, with every cached prefix given up."""
    engine.check()
    engine.memory.forget_prefixes()
    return {
        "free blocks": {name: pool.num_free for name, pool in engine.memory.pools.items()},
        "calls": engine.memory.ledger.num_live_calls,
        "sessions": engine.states.sessions,
        "objects": census(),
    }


def test_ten_thousand_cycles_leave_the_house_as_it_was(engine):
    draw = random.Random(17)
    warm = cycle(engine, NUM_WARM_UP, draw)
    before, rss_before, threads_before = house(engine), rss_bytes(), threading.active_count()
    total = warm + cycle(engine, NUM_CYCLES - warm, draw)
    after, rss_after = house(engine), rss_bytes()
    assert after == before
    # threads of engines that earlier tests dropped may end meanwhile
    assert threading.active_count() <= threads_before
    assert after["free blocks"] == {name: pool.num_blocks for name, pool in engine.memory.pools.items()}
    assert rss_after - rss_before < MAX_RSS_GROWTH_BYTES
    counters = engine.counters
    assert total >= NUM_CYCLES
    assert counters.num_finished + counters.num_aborted == total
    assert counters.num_aborted > NUM_CYCLES // 10
    assert engine.slots.counters.evictions > NUM_CYCLES // 20
    assert counters.num_failed == 0
    # no slot is still held: as many states as there are slots run side by side, and the first two come back
    for sessions in (("s0", "s1"), ("s2", "s3"), ("s0", "s1")):
        engine.generate([Request("x", SamplingParams(max_new_tokens=2), session=session) for session in sessions])


def test_an_engine_that_is_dropped_takes_everything_with_it(model):
    def use():
        engine = Engine(model, EngineConfig(kv_cache_bytes=40_000, block_size=4, num_state_slots=NUM_SLOTS))
        engine.add_state(random_state(model, "s", seed=1))
        engine.generate([Request("x", SamplingParams(max_new_tokens=2), session="s")])

    use()
    before, threads_before = census(), threading.active_count()
    for _ in range(5):
        use()
    assert census() == before
    assert threading.active_count() <= threads_before
