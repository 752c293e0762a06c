"""Forgetting a state takes it out of registration, slots, host memory and prefixes."""

from __future__ import annotations

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.errors import CapacityError, SessionNotFound
from tests.engine.adapters import random_state
from tests.tiny import tiny_model

SAMPLING = SamplingParams(max_new_tokens=4, ignore_eos=True)


@pytest.fixture
def engine():
    engine = Engine(tiny_model(), EngineConfig(num_state_slots=2, max_rank=8, kv_cache_bytes=1 << 22, block_size=4))
    engine.add_state(random_state(tiny_model(), "a", 1))
    return engine


def test_nothing_of_it_is_left(engine):
    engine.generate([Request("a long enough prompt to fill blocks", SAMPLING, session="a")])
    digest = engine.states.get("a").digest
    weights = engine.states.get("a").read().factors[3, "q_proj"].a.numpy().tobytes()[:48]
    assert weights in engine.slots.cache.rows._memory.numpy().tobytes()
    assert engine.slots.resident(digest) and engine.memory.bytes_cached > 0
    assert engine.forget_state("a") > 0
    assert not engine.slots.resident(digest) and engine.memory.bytes_cached == 0
    memory = engine.slots.cache.rows._memory.numpy().tobytes()
    assert weights not in memory
    with pytest.raises(SessionNotFound):
        engine.forget_state("a")
    engine.check()


def test_a_state_in_use_is_kept_whole(engine):
    engine.add(Request("prompt", SAMPLING, session="a"))
    while not engine.num_running:
        engine.step()
    with pytest.raises(CapacityError):
        engine.forget_state("a")
    assert engine.states.get("a")
    while engine.num_unfinished:
        engine.step()
    engine.forget_state("a")


def test_the_same_state_of_another_session_stays(engine):
    engine.add_state(random_state(tiny_model(), "a", 1).for_session("b"))
    engine.generate([Request("prompt", SAMPLING, session="b")])
    engine.forget_state("a")
    assert engine.slots.resident(engine.states.get("b").digest)
