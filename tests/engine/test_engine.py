"""What the engine promises a caller: endings, limits, refusals, usage, and a clean house after all of them."""

from __future__ import annotations

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.errors import CapacityError, ConfigError, RequestRejected, SessionNotFound, StateFormatError
from pss_engine.state import SessionState, StateMeta, StateStore
from tests.engine.adapters import random_state
from tests.real import real_model
from tests.tiny import tiny_model


@pytest.fixture
def engine():
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**22))
    yield engine
    engine.check()
    assert engine.memory.ledger.num_live_calls == engine.memory.bytes_in_use == 0


def one(engine, prompt, session=None, **sampling):
    return engine.generate([Request(prompt, SamplingParams(**sampling), session=session)])[0]


def test_length_ends_a_request(engine):
    output = one(engine, "abc", max_new_tokens=5, ignore_eos=True)
    assert (output.finish_reason, len(output.token_ids)) == ("length", 5)


def test_the_end_of_turn_ends_a_request_and_is_not_text():
    output = one(Engine(real_model()), [{"role": "user", "content": "What is the capital of France? One word."}])
    assert output.finish_reason == "stop"
    assert "Paris" in output.text
    assert "<|im_end|>" not in output.text


def test_a_stop_string_ends_the_text_before_it(engine):
    free = one(engine, "abc", max_new_tokens=40, ignore_eos=True)
    stop = free.text[10:13]
    output = one(engine, "abc", max_new_tokens=40, ignore_eos=True, stop=(stop,))
    assert output.finish_reason == "stop"
    assert output.text == free.text[: free.text.index(stop)]


def test_the_context_ends_a_request():
    engine = Engine(tiny_model(), EngineConfig(max_context=16, kv_cache_bytes=2**20))
    output = one(engine, "0123456789", max_new_tokens=50, ignore_eos=True)
    assert (output.finish_reason, len(output.token_ids)) == ("length", 6)


def test_an_aborted_request_keeps_its_text_and_leaves_nothing(engine):
    request_id = engine.add(Request("abc", SamplingParams(max_new_tokens=50, ignore_eos=True)))
    engine.step()
    engine.step()
    output = engine.abort(request_id)
    assert (output.finish_reason, len(output.token_ids)) == ("abort", 2)
    assert engine.abort(request_id) is None
    assert engine.step() == []


def test_a_waiting_request_can_be_aborted(engine):
    request_id = engine.add(Request("abc"))
    assert engine.abort(request_id).token_ids == []


def test_usage_is_the_tokens_held(engine):
    output = one(engine, "0123456789", max_new_tokens=8, ignore_eos=True)
    usage, per_token = output.usage, engine.memory.geometry.bytes_per_token
    assert (usage.prompt_tokens, usage.generated_tokens) == (10, 8)
    assert usage.kv_peak_bytes == (10 + 8 - 1) * per_token  # the last token is sampled, never stored
    assert usage.kv_peak_bytes_allocated == 32 * per_token  # two blocks of 16
    assert output.timings.total_s >= output.timings.time_to_first_token_s >= output.timings.queue_s >= 0


def test_a_state_is_reported_with_the_output(engine):
    state = random_state(tiny_model(), "s", seed=1)
    engine.add_state(state)
    output = one(engine, "abc", session="s", max_new_tokens=4, ignore_eos=True)
    assert output.state_digest == state.digest
    assert output.usage.state_bytes == state.num_bytes
    assert engine.counters.num_state_tokens == 3 + 3
    assert engine.counters.num_adapter_calls > 0


def test_an_idle_engine_launches_no_adapter(engine):
    engine.add_state(random_state(tiny_model(), "s", seed=1))
    one(engine, "abc", max_new_tokens=4)
    assert engine.counters.num_adapter_calls == engine.counters.num_state_tokens == 0


def test_a_state_of_a_few_modules_launches_for_those_alone(engine):
    model = tiny_model()
    engine.add_state(random_state(model, "s", seed=1, modules=("o_proj",), layers=[model.config.num_layers - 1]))
    one(engine, "abc", session="s", max_new_tokens=1)
    assert engine.counters.num_adapter_calls == 1


def test_an_unknown_session_is_never_the_base_model(engine):
    with pytest.raises(SessionNotFound, match="'ghost' has no state in this engine; known: none"):
        one(engine, "abc", session="ghost")


def test_a_removed_state_is_gone_for_new_requests(engine):
    engine.add_state(random_state(tiny_model(), "s", seed=1))
    request_id = engine.add(Request("abc", SamplingParams(max_new_tokens=3, ignore_eos=True), session="s"))
    engine.remove_state("s")
    outputs = []
    while engine.num_unfinished:
        outputs += engine.step()
    assert outputs[0].request_id == request_id and len(outputs[0].token_ids) == 3
    with pytest.raises(SessionNotFound):
        one(engine, "abc", session="s")


def test_a_newer_version_serves_new_requests_under_the_same_name(engine):
    model = tiny_model()
    versions = [random_state(model, "s", seed=seed) for seed in (1, 2)]
    outputs = []
    for state in versions:
        engine.add_state(state)
        outputs.append(one(engine, "abc", session="s", max_new_tokens=6, ignore_eos=True))
    assert [o.state_digest for o in outputs] == [s.digest for s in versions]
    assert outputs[0].token_ids != outputs[1].token_ids


@pytest.mark.parametrize(
    ("prompt", "match"),
    [
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        ([999], "token id 999 is outside the vocabulary of 259"),
        ([-1], "token id -1 is outside"),
        ("x" * 512, "prompt has 512 tokens; the context holds 512"),
        ([{"role": "user", "content": "x" * 600}], "the context holds 512"),
        (["a", {"role": "user"}], "prompt mixes kinds"),
    ],
)
def test_a_bad_prompt_is_refused_with_its_numbers(engine, prompt, match):
    with pytest.raises(RequestRejected, match=match):
        one(engine, prompt)


@pytest.mark.parametrize(
    ("sampling", "match"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"stop": "abc"}, "sequence of non-empty strings"),
        ({"stop": ("",)}, "non-empty strings"),
    ],
)
def test_bad_sampling_is_refused_with_its_value(sampling, match):
    with pytest.raises(RequestRejected, match=match):
        SamplingParams(**sampling)


def test_one_bad_request_of_a_list_starts_none(engine):
    with pytest.raises(RequestRejected):
        engine.generate([Request("good"), Request("")])
    assert engine.num_unfinished == 0


def test_generate_keeps_the_outputs_of_requests_added_before(engine):
    early = engine.add(Request("abc", SamplingParams(max_new_tokens=2, ignore_eos=True)))
    late = one(engine, "abc", max_new_tokens=6, ignore_eos=True)
    assert late.request_id != early
    assert [output.request_id for output in engine.step()] == [early]


def test_a_request_that_memory_cannot_hold_is_refused():
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2 * 16 * (2 * 4 * 2 * 8 + 48) * 4))
    with pytest.raises(RequestRejected, match="need 83 tokens of KV; the cache holds 32"):
        one(engine, "0123456789012345678", max_new_tokens=64)


def test_a_full_queue_is_refused():
    engine = Engine(tiny_model(), EngineConfig(max_queued=2, kv_cache_bytes=2**20))
    engine.add(Request("a"))
    engine.add(Request("b"))
    with pytest.raises(RequestRejected, match="queue is full: 2"):
        engine.add(Request("c"))


def test_a_live_request_id_is_refused(engine):
    engine.add(Request("a", request_id="mine"))
    with pytest.raises(RequestRejected, match="'mine' is in use"):
        engine.add(Request("a", request_id="mine"))
    engine.abort("mine")


def test_states_of_another_model_tokenizer_rank_or_layer_are_refused(engine):
    model = tiny_model()
    good = random_state(model, "s", seed=1)
    for field, match in (("model_fingerprint", "model"), ("tokenizer_fingerprint", "tokenizer")):
        meta = StateMeta(**{field: "0" * 64})
        with pytest.raises(StateFormatError, match=match):
            engine.add_state(SessionState("s", good.factors, good.config, meta))
    with pytest.raises(StateFormatError, match="rank 65 is over max_rank 64"):
        engine.add_state(random_state(model, "s", seed=1, rank=65))
    with pytest.raises(StateFormatError, match="layer 0 is outside the session layers"):
        engine.add_state(random_state(model, "s", seed=1, layers=[0, 3]))
    with pytest.raises(StateFormatError):
        engine.add_state(random_state(tiny_model("phi3"), "s", seed=1))
    assert engine.states.sessions == []


def test_a_failing_step_ends_its_requests_and_not_the_engine(engine, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "run", lambda chunks: 1 / 0)
        output = one(engine, "abc")
    assert (output.finish_reason, output.error) == ("error", "ZeroDivisionError: division by zero")
    assert one(engine, "abc", max_new_tokens=2, ignore_eos=True).finish_reason == "length"


def test_a_state_that_cannot_be_loaded_fails_its_request_alone(engine, tmp_path):
    store = StateStore(tmp_path)
    for name, seed in (("good", 1), ("bad", 2)):
        store.put(random_state(tiny_model(), name, seed=seed))
        engine.add_stored(store, name)
    weights = store.path("bad") / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    good, bad, base = engine.generate([Request("abc", params, session=s) for s in ("good", "bad", None)])
    assert (good.finish_reason, base.finish_reason) == ("length", "length")
    assert bad.finish_reason == "error"
    assert "quarantine" in bad.error and "\n" not in bad.error


def test_a_pinned_state_stays_while_others_come_and_go():
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**22, num_state_slots=2))
    for i in range(4):
        engine.add_state(random_state(tiny_model(), f"s{i}", seed=i))
    engine.pin_state("s0")
    engine.generate([Request("abc", SamplingParams(max_new_tokens=2), session=f"s{i}") for i in (1, 2, 3, 1)])
    assert engine.slots.resident(engine.states.get("s0").digest)
    with pytest.raises(CapacityError, match="state slots to pin: 2 needed, 1 free"):
        engine.pin_state("s1")
    engine.unpin_state("s0")
    engine.pin_state("s1")
    engine.unpin_state("s1")
    engine.check()


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"max_batched_tokens": 8}, "less than max_num_seqs 32"),
        ({"state_dtype": "int4"}, "choices: auto"),
    ],
)
def test_bad_limits_are_refused(config, match):
    with pytest.raises(ConfigError, match=match):
        EngineConfig(**config)


def test_limits_over_the_models_are_refused():
    with pytest.raises(ConfigError, match="max_context 9999 is over the model's 512"):
        Engine(tiny_model(), EngineConfig(max_context=9999))
    with pytest.raises(ConfigError, match="less than one block"):
        Engine(tiny_model(), EngineConfig(kv_cache_bytes=10))
