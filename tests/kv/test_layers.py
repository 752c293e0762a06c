"""What a config says of KV, exactly: heads, latents, windows, recurrent layers; and what it does not say is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine
from pss_engine.errors import ConfigError
from pss_engine.kv import SESSION, SHARED, KVPlan, ModelKV
from tests.tiny import FAMILIES, NUM_SESSION_LAYERS, SIZES, tiny_hf_model, tiny_model

PUBLISHED = {
    # name: (model_type, fields of the published config, KV bytes a token at 2 bytes an element)
    "Qwen2.5-7B": (
        "qwen2",
        {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4},
        57_344,
    ),
    "Mistral-7B-v0.2": (
        "mistral",
        {"hidden_size": 4096, "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": None},
        131_072,
    ),
    "Phi-3-mini": (
        "phi3",
        {"hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32},
        393_216,
    ),
    "Llama-3.1-8B": (
        "llama",
        {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
        131_072,
    ),
}


def plan(model, kv_dtype="bfloat16", context=1024, **changes):
    numbers = {"block_size": 16, "context": context, "batch": 1, "num_session_layers": 8, "common_tokens": 0}
    return KVPlan(model, kv_dtype, **{**numbers, **changes})


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(name):
    family, fields, expected = PUBLISHED[name]
    model = ModelKV.of(AutoConfig.for_model(family, **fields))
    assert model.token_bytes("bfloat16") == expected
    assert model.recurrent_bytes == 0


def test_the_hybrid_of_the_paper_grows_in_ten_of_forty_layers():
    model = ModelKV.of(AutoConfig.for_model("qwen3_5_moe_text"))
    assert model.token_bytes("fp8") == 10_240 == 2 * 10 * 2 * 256
    # 30 layers, each 32 heads of 128 x 128 in float32, and 3 inputs of a convolution of 8192 channels in bfloat16
    assert model.recurrent_bytes == 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    rows = {row["kind"]: row for group in (SHARED, SESSION) for row in plan(model, "fp8").rows(group)}
    assert rows["delta"]["kv_bytes"] == 0
    assert rows["full"]["recurrent_state_bytes"] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_that_transformers_fills_weighs_as_much(family):
    hf = tiny_hf_model(family)
    cache = hf(torch.tensor([list(range(3, 40))]), use_cache=True).past_key_values
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    assert sum(tensor.nbytes for tensor in tensors) == plan(ModelKV.of(hf.config), "float32", context=37).logical_bytes


@pytest.mark.parametrize("num_tokens", [5, 37])
def test_a_hybrid_cache_of_transformers_weighs_as_much(num_tokens):
    sizes = {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
    config = AutoConfig.for_model(
        "qwen3_5_moe_text",
        **sizes,
        **linear,
        linear_value_head_dim=8,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        dtype="float32",
    )
    hf = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    cache = hf(torch.tensor([list(range(num_tokens))]), use_cache=True).past_key_values
    model = ModelKV.of(hf.config)
    grown = recurrent = conv = 0
    for layer in cache.layers:
        if getattr(layer, "keys", None) is not None:
            grown += layer.keys.nbytes + layer.values.nbytes
        else:
            recurrent += sum(state.nbytes for state in layer.recurrent_states.values())
            conv += sum(state.nbytes for state in layer.conv_states.values())
    assert grown == plan(model, "float32", context=num_tokens).logical_bytes > 0
    # transformers keeps the current input of the convolution too, which the next step does not need
    kernel = config.linear_conv_kernel_dim
    assert recurrent + conv * (kernel - 1) // kernel == model.recurrent_bytes > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engines_blocks_weigh_what_the_config_says(family):
    engine = Engine(tiny_model(family), EngineConfig(kv_cache_bytes=2**20))
    geometry = engine.memory.geometry
    config = plan(ModelKV.of(tiny_hf_model(family).config), "float32", num_session_layers=NUM_SESSION_LAYERS)
    for group in (SHARED, SESSION):
        assert config.model.token_bytes("float32", config.group(group)) == geometry.token_bytes(group)
    assert geometry.dtype == "float32"


def test_latent_attention_keeps_one_row_for_all_heads():
    model = ModelKV.of(AutoConfig.for_model("deepseek_v3"))
    assert model.token_bytes("bfloat16") == 61 * (512 + 64) * 2


def test_windows_end_what_a_layer_keeps():
    model = ModelKV.of(AutoConfig.for_model("mistral", sliding_window=100))
    short, long = plan(model, context=64), plan(model, context=1000)
    assert short.logical_bytes == 64 * model.token_bytes("bfloat16")
    assert long.logical_bytes == 100 * model.token_bytes("bfloat16")
    assert long.allocated_bytes == 112 * model.token_bytes("bfloat16")
    assert long.unwindowed_bytes == 1008 * model.token_bytes("bfloat16")


def test_one_head_for_all_queries():
    config = SimpleNamespace(num_hidden_layers=2, num_attention_heads=8, hidden_size=64, multi_query=True)
    assert ModelKV.of(config).token_bytes("float16") == 2 * 2 * 8 * 2


@pytest.mark.parametrize(
    "config, message",
    [
        ({"layer_types": ["full_attention", "spiral"]}, "spiral"),
        ({"num_hidden_layers": 2}, "num_attention_heads is None"),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": "big"}, "hidden_size is 'big'"),
        ({"layer_types": ["mamba"]}, "mamba_n_heads"),
        ({}, "num_hidden_layers is None"),
    ],
)
def test_what_is_not_said_is_not_guessed(config, message):
    with pytest.raises(ConfigError, match=message):
        ModelKV.of(SimpleNamespace(**config))
