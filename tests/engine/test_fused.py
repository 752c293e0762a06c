"""Layers in one call give the bits of layers op by op, whatever is in the batch."""

from __future__ import annotations

import pytest
import torch

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.errors import ConfigError
from pss_engine.models import load_model
from pss_engine.ops.linear import linear
from tests.engine.adapters import random_state
from tests.engine.test_bit_exact import logits_of
from tests.tiny import FAMILIES, tiny_model, tiny_model_folder

pytestmark = pytest.mark.skipif("cpp" not in linear.backends("cpu"), reason="the extension is not built")

PARAMS = SamplingParams(max_new_tokens=5, ignore_eos=True)
SESSIONS = ["s0", None, "s1", None, "s0"]


def engine_of(model, **config):
    engine = Engine(model, EngineConfig(**{"kv_cache_bytes": 2**24, "block_size": 8, **config}))
    for i in range(2):
        engine.add_state(random_state(model, f"s{i}", seed=i, rank=3 + i))
        engine.pin_state(f"s{i}")  # so that no step has to wait for one, and the counters can be compared
    return engine


def requests():
    texts = ["short", "an instruction that is longer than a few blocks of the cache", "x", "the last", "a fifth one"]
    return [Request(text, PARAMS, session=session) for text, session in zip(texts, SESSIONS, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("weights", "activations"),
    [("float32", "float32"), ("bfloat16", "float32"), ("int8", "float32"), ("int8", "int8")],
)
def test_one_call_has_the_bits_of_op_by_op(family, weights, activations):
    model = load_model(str(tiny_model_folder(family)), num_session_layers=2, device="cpu", weights=weights)
    fused, plain = (engine_of(model, fused_layers=on, activations=activations) for on in (True, False))
    assert (fused.why_not_fused, plain.why_not_fused) == ("", "fused_layers=False")
    for a, b in zip(logits_of(fused, requests()), logits_of(plain, requests()), strict=True):
        assert torch.equal(a, b)
    assert fused.counters.num_fused_steps == fused.counters.num_eager_steps > 0
    assert plain.counters.num_fused_steps == 0
    assert fused.counters.num_adapter_calls == plain.counters.num_adapter_calls > 0
    fused.check()


@pytest.mark.parametrize("max_batched_tokens", [5, 9])
def test_chunks_of_prefill_change_no_bit(max_batched_tokens):
    model = tiny_model("mistral")
    chunked = engine_of(model, max_batched_tokens=max_batched_tokens, max_num_seqs=5)
    for a, b in zip(logits_of(engine_of(model), requests()), logits_of(chunked, requests()), strict=True):
        assert torch.equal(a, b)


def test_int8_activations_need_quantised_weights():
    with pytest.raises(ConfigError, match="need quantised weights"):
        engine_of(tiny_model("llama"), activations="int8")
    with pytest.raises(ConfigError, match="choices: auto, float32, int8"):
        EngineConfig(activations="int4")


def test_an_engine_says_what_it_takes_activations_in():
    folder = str(tiny_model_folder("llama"))
    quantized = load_model(folder, device="cpu", weights="int8")
    assert engine_of(tiny_model("llama")).activations == "float32"
    assert Engine(quantized).activations == "int8"
    assert Engine(quantized).model is quantized, "states are learned on rows in float32"
    assert Engine(quantized, EngineConfig(activations="float32")).activations == "float32"
