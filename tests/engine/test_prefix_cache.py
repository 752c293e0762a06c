"""A prefix seen before is not run again: not at all under the same state, above the cut only under another."""

from __future__ import annotations

import random

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from tests.engine.adapters import random_state
from tests.tiny import tiny_model

LONG = "one instruction for all of the sessions, longer than two blocks; "
PARAMS = SamplingParams(max_new_tokens=6, ignore_eos=True)


def engine_of(num_states=3, **config):
    engine = Engine(tiny_model(), EngineConfig(**{"kv_cache_bytes": 2**22, "block_size": 8, **config}))
    for i in range(num_states):
        engine.add_state(random_state(tiny_model(), f"s{i}", seed=i))
    return engine


def one(engine, prompt, session=None, **kwargs):
    return engine.generate([Request(prompt, PARAMS, session=session, **kwargs)])[0]


def test_the_same_state_runs_the_rest_only():
    engine = engine_of()
    cold = one(engine, LONG, "s0")
    before = engine.counters.num_tokens
    warm = one(engine, LONG, "s0")
    assert warm.token_ids == cold.token_ids
    assert warm.usage.cached_tokens == (len(LONG) - 1) // 8 * 8
    assert engine.counters.num_tokens - before == len(LONG) - warm.usage.cached_tokens + len(warm.token_ids) - 1


def test_another_state_runs_the_session_layers_only():
    engine = engine_of()
    one(engine, LONG, "s0")
    shared_before = engine.counters.num_shared_tokens
    warm = one(engine, LONG, "s1")
    assert warm.token_ids == one(engine_of(), LONG, "s1").token_ids
    assert (warm.usage.cached_tokens, warm.usage.cached_shared_tokens) == (0, len(LONG) // 8 * 8)
    fresh = engine.counters.num_shared_tokens - shared_before
    assert fresh == len(LONG) % 8 + len(warm.token_ids) - 1


@pytest.mark.parametrize("max_batched_tokens", [5, 16, 128])
def test_chunks_of_prefill_and_the_cache_go_together(max_batched_tokens):
    limits = {"max_batched_tokens": max_batched_tokens, "max_num_seqs": 5}
    engine = engine_of(**limits)
    one(engine, LONG, "s0")
    prompts = [LONG + "a", LONG[:20] + "b", LONG]
    for session in ("s1", None, "s0"):
        for prompt in prompts:
            assert one(engine, prompt, session).token_ids == one(engine_of(), prompt, session).token_ids
    engine.check()


def test_scopes_do_not_share():
    engine = engine_of()
    one(engine, LONG, scope="tenant-a")
    assert one(engine, LONG, scope="tenant-b").usage.cached_shared_tokens == 0
    assert one(engine, LONG, scope="tenant-a").usage.cached_tokens > 0


def test_a_new_version_of_a_state_does_not_find_the_old_keys():
    engine = engine_of()
    one(engine, LONG, "s0")
    engine.add_state(random_state(tiny_model(), "s0", seed=77))
    warm = one(engine, LONG, "s0")
    assert warm.usage.cached_tokens == 0
    cold = engine_of()
    cold.add_state(random_state(tiny_model(), "s0", seed=77))
    assert warm.token_ids == one(cold, LONG, "s0").token_ids


def test_generated_tokens_are_found_by_the_next_turn():
    engine = engine_of()
    first = one(engine, [*range(10, 40)], "s0")
    turn = [*range(10, 40), *first.token_ids, 50, 51]
    assert one(engine, turn, "s0").usage.cached_tokens == 32


def test_any_stream_of_requests_gives_the_tokens_of_a_cold_engine():
    draw = random.Random(11)
    engine = engine_of(kv_cache_bytes=80_000, num_state_slots=2, max_num_seqs=4)
    expected = {}
    for _ in range(12):
        wave = [
            Request(LONG[: draw.randint(1, 60)] + draw.choice("xyz") * draw.randint(0, 9), PARAMS, session=session)
            for session in draw.choices([None, "s0", "s1", "s2"], k=4)
        ]
        for request, output in zip(wave, engine.generate(wave), strict=True):
            key = (request.prompt, request.session)
            if key not in expected:
                expected[key] = engine_of().generate([request])[0].token_ids
            assert output.token_ids == expected[key]
        engine.check()
    assert sum(pool.num_evictions for pool in engine.memory.pools.values()) > 0
