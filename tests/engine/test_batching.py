"""Rows of one batch do not touch each other: batched = one by one = PEFT, whatever runs beside."""

from __future__ import annotations

import random

import peft
import pytest
import torch

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.state import save_adapter
from tests.engine.adapters import random_state
from tests.tiny import FAMILIES, tiny_hf_model, tiny_model

PROMPTS = ["short", "a somewhat longer prompt, to be cut into chunks", "x", "the third kind of length"]


def requests(sessions, max_new_tokens=12, **sampling):
    params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True, **sampling)
    return [Request(PROMPTS[i % len(PROMPTS)], params, session=s) for i, s in enumerate(sessions)]


def engine_with(model, states, **config):
    engine = Engine(model, EngineConfig(**{"kv_cache_bytes": 2**22, **config}))
    for state in states:
        engine.add_state(state)
    return engine


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixed_batch_equals_one_by_one_equals_peft(family, tmp_path):
    model = tiny_model(family)
    states = [random_state(model, f"s{i}", seed=i, rank=rank) for i, rank in enumerate((1, 3, 8))]
    sessions = ["s0", None, "s1", "s2", None, "s0"]
    engine = engine_with(model, states)
    batched = engine.generate(requests(sessions))
    alone = [engine_with(model, states).generate([request])[0] for request in requests(sessions)]
    assert [o.token_ids for o in batched] == [o.token_ids for o in alone]
    assert len({tuple(o.token_ids) for o in (batched[0], batched[2], batched[3])}) == 3, "the states must matter"
    for state, request, output in ((states[0], 0, batched[0]), (states[1], 2, batched[2]), (states[2], 3, batched[3])):
        save_adapter(state, tmp_path / state.session_id)
        theirs = peft.PeftModel.from_pretrained(tiny_hf_model(family), tmp_path / state.session_id)
        ids = model.tokenizer.prompt(PROMPTS[request % len(PROMPTS)])
        assert greedy(theirs, ids, 12) == output.token_ids
    engine.check()
    assert engine.memory.bytes_in_use == 0


def greedy(model, ids, count):
    out = list(ids)
    with torch.inference_mode():
        for _ in range(count):
            out.append(int(model(torch.tensor([out])).logits[0, -1].argmax()))
    return out[len(ids) :]


def test_base_rows_beside_states_are_the_base_model():
    model = tiny_model()
    states = [random_state(model, "s", seed=1)]
    mixed = engine_with(model, states).generate(requests(["s", None, "s", None]))
    base = Engine(model).generate(requests([None] * 4))
    assert [mixed[1].token_ids, mixed[3].token_ids] == [base[1].token_ids, base[3].token_ids]
    assert mixed[0].token_ids != base[0].token_ids


@pytest.mark.parametrize("max_batched_tokens", [4, 7, 64])
def test_prefill_in_chunks_changes_no_token(max_batched_tokens):
    model = tiny_model("mistral")
    states = [random_state(model, "s", seed=2)]
    whole = engine_with(model, states).generate(requests(["s", None, "s"]))
    config = {"max_batched_tokens": max_batched_tokens, "max_num_seqs": 3, "block_size": 4}
    chunked = engine_with(model, states, **config).generate(requests(["s", None, "s"]))
    assert [o.token_ids for o in whole] == [o.token_ids for o in chunked]


def test_preemption_changes_no_token_and_is_counted():
    model = tiny_model()
    states = [random_state(model, "s", seed=3)]
    quiet = engine_with(model, states).generate(requests(["s", None, "s", None], max_new_tokens=30))
    tight = engine_with(model, states, kv_cache_bytes=engine_bytes(model, 24), block_size=4)
    crowded = tight.generate(requests(["s", None, "s", None], max_new_tokens=30))
    assert [o.token_ids for o in quiet] == [o.token_ids for o in crowded]
    assert tight.counters.num_preemptions > 0
    assert sum(o.usage.num_preemptions for o in crowded) == tight.counters.num_preemptions
    tight.check()


def engine_bytes(model, num_blocks, block_size=4):
    per_token = 2 * model.config.num_layers * model.config.num_kv_heads * model.config.head_dim * 4
    return num_blocks * block_size * (per_token + model.config.hidden_size * 4)


def test_more_sessions_than_slots_take_turns():
    model = tiny_model()
    states = [random_state(model, f"s{i}", seed=i) for i in range(5)]
    sessions = [f"s{i % 5}" for i in range(10)]
    roomy = engine_with(model, states, num_state_slots=5).generate(requests(sessions))
    scarce_engine = engine_with(model, states, num_state_slots=2)
    scarce = scarce_engine.generate(requests(sessions))
    assert [o.token_ids for o in roomy] == [o.token_ids for o in scarce]
    assert scarce_engine.slots.counters.evictions > 0
    scarce_engine.check()


def test_sampled_rows_draw_the_same_in_a_crowd():
    model = tiny_model()
    alone = Engine(model).generate([requests([None], temperature=1.0, seed=5)[0]])[0]
    crowd = Engine(model).generate(requests([None] * 4, temperature=1.0, seed=5))
    assert crowd[0].token_ids == alone.token_ids
    other = Engine(model).generate([requests([None], temperature=1.0, seed=6)[0]])[0]
    assert other.token_ids != alone.token_ids


def test_a_random_stream_of_requests_gives_each_its_own_tokens():
    model = tiny_model()
    states = [random_state(model, f"s{i}", seed=i) for i in range(3)]
    draw = random.Random(4)
    engine = engine_with(
        model, states, num_state_slots=2, max_num_seqs=4, kv_cache_bytes=engine_bytes(model, 40), block_size=4
    )
    wanted, outputs, pending = {}, {}, []
    for i in range(24):
        session = draw.choice([None, "s0", "s1", "s2"])
        params = SamplingParams(max_new_tokens=draw.randint(1, 9), ignore_eos=True)
        pending.append(Request(draw.choice(PROMPTS), params, session=session, request_id=f"r{i}"))
    while pending or engine.num_unfinished:
        while pending and draw.random() < 0.4:
            request = pending.pop()
            wanted[engine.add(request)] = request
        if engine.num_unfinished and draw.random() < 0.05:
            victim = draw.choice(sorted(engine._live))
            engine.abort(victim)
            wanted.pop(victim)
        for output in engine.step():
            outputs[output.request_id] = output
        engine.check()
    assert set(outputs) == set(wanted)
    for request_id, request in wanted.items():
        quiet = engine_with(model, states).generate([request])[0]
        assert outputs[request_id].token_ids == quiet.token_ids
