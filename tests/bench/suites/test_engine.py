"""The engine suite on the tiny model: what is counted is what happened, and unequal tokens are said."""

from __future__ import annotations

import pytest

from bench.suites.engine import idle, prefixes, residency, work
from pss_engine.state import StateStore
from tests.engine.adapters import random_state
from tests.tiny import tiny_model


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    monkeypatch.setattr(work, "KV_CACHE_BYTES", 2**22)


def test_differing_requests_are_counted():
    assert work.differing([[1, 2], [3]], [[1, 2], [3]]) is True
    assert work.differing([[1, 2], [3]], [[1, 9], [3]]) == "tokens of 1 of 2 requests differ"


def test_random_states_matter_and_are_made_for_the_model():
    model = tiny_model()
    engine = work.engine_of(model, work.random_states(model, 2), num_state_slots=2)
    prompt = work.clue_prompt(model, 0)
    assert len(prompt) == work.PROMPT_TOKENS
    outputs = engine.generate(work.requests([prompt] * 3, ["s0", "s1", None], 12))
    assert len({tuple(tokens) for tokens in work.tokens_of(outputs)}) == 3


def test_zipf_asks_the_first_states_most():
    names = [f"s{i}" for i in range(8)]
    drawn = residency.draw(names, "zipf", 400, seed=1)
    assert drawn.count("s0") > 2 * drawn.count("s3") > 0
    assert residency.draw(names, "zipf", 400, seed=1) == drawn
    assert set(residency.draw(names, "uniform", 400, seed=1)) == set(names)


def test_a_stream_counts_what_its_slots_did(tmp_path):
    model, store = tiny_model(), StateStore(tmp_path)
    names = [f"s{i}" for i in range(8)]
    for i, name in enumerate(names):
        store.put(random_state(model, name, seed=i))
    prompts = {name: [40 + i, 41, 42] for i, name in enumerate(names)}
    quiet = work.engine_of(model, [store.get(name) for name in names], num_state_slots=8)
    tokens = work.tokens_of(quiet.generate(work.requests(list(prompts.values()), names, residency.MAX_NEW_TOKENS)))
    expected = dict(zip(names, tokens, strict=True))
    stream = residency.Stream(model, store, residency.Setting("twice", 8, 4), prompts)
    stream.serve(names)
    stream.serve(names)
    rows = {row.metric: row for row in stream.rows({}, "ours", expected, 1.0)}
    stream.close()
    assert {row.checked for row in rows.values()} == {True}
    assert {row.n or len(row.samples) for row in rows.values()} == {16}
    assert rows["loads_per_request"].samples == rows["misses_per_request"].samples
    assert rows["evictions_per_request"].samples[0] >= 8 / 16
    assert stream.sessions == names * 2


def test_a_turn_counts_the_tokens_on_both_sides_of_the_cut():
    model = tiny_model()
    states = work.random_states(model, 2)
    prompts = [[*range(40, 72), 100 + i] for i in range(2)]
    cached, cold = (work.engine_of(model, states, prefix_caching=on) for on in (True, False))
    turns = [prefixes.Turn(engine, prompts) for engine in (cached, cold)]
    num_tokens = 2 * (33 + prefixes.NEW_TOKENS - 1)
    assert [turn.session_tokens for turn in turns] == [num_tokens, num_tokens]
    assert [turn.shared_tokens for turn in turns] == [num_tokens - 32, num_tokens]
    assert turns[0].token_ids == turns[1].token_ids


def test_steps_in_turn_are_counted_for_both_engines():
    model = tiny_model()
    engines = {name: work.engine_of(model) for name in ("idle", "bare")}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    outputs = idle._in_turn(engines, work.requests([[40, 41], [50, 51]], [None, None], 5), seconds)
    assert [len(samples) for samples in seconds.values()] == [4, 4]
    assert [o.token_ids for o in outputs["idle"]] == [o.token_ids for o in outputs["bare"]]


def test_a_request_that_failed_has_no_times():
    engine = work.engine_of(tiny_model())
    request_id = engine.add(work.requests([[40]], [None], 5)[0])
    aborted = engine.abort(request_id)
    with pytest.raises(RuntimeError, match="ended by abort"):
        work.tokens_of([aborted])
