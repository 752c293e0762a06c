"""Adapter folders: our own come back as they were; a stranger's load, or are refused with the reason."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from pss_engine.errors import CapacityError, ConfigError, StateFormatError
from pss_engine.state import SessionState, StateMeta, StateShape, load_adapter, save_adapter
from tests.state.states import (
    ALL_KEYS,
    QV_KEYS,
    SHAPE,
    TARGETS,
    make_state,
    make_tensors,
    named,
    nan_tensors,
    same_tensors,
    write_adapter,
)

QV = make_tensors(QV_KEYS)
Q2 = "base_model.model.model.layers.2.self_attn.q_proj"


def load(folder, **options):
    return load_adapter(folder, shape=SHAPE, max_rank=64, **options)


def refused(folder, match, **options):
    with pytest.raises(StateFormatError, match=match) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)


# ---- our own folders


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_saved_state_comes_back_whole(tmp_path, dtype):
    meta = StateMeta("m", "t", "tiny", {"lr": 1e-4}, 91, "2026-01-01T00:00:00Z", 12, "clue é", (3, 4), "c", "n")
    state = make_state("alpha", dtype=dtype, meta=meta)
    save_adapter(state, tmp_path / "out")
    back = load(tmp_path / "out")
    assert same_tensors(state, back)
    assert (back.session_id, back.digest, back.meta, back.config) == ("alpha", state.digest, meta, state.config)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "pss_state.json",
    ]


RANKS = {(2, "q_proj"): 1, (2, "v_proj"): 3, (3, "q_proj"): 33, (3, "v_proj"): 3}
ALPHAS = {(2, "q_proj"): 2.0, (2, "v_proj"): 6.0, (3, "q_proj"): 0.1, (3, "v_proj"): 6.0}


@pytest.mark.parametrize("use_rslora", [False, True])
@pytest.mark.parametrize("shape", [SHAPE, None])
def test_uneven_ranks_alphas_and_targets_come_back(tmp_path, use_rslora, shape):
    keys = [(2, "q_proj"), (3, "q_proj"), (3, "v_proj")]
    alphas = {key: ALPHAS[key] for key in keys}
    state = SessionState.from_tensors("s", make_tensors(keys, RANKS), alphas, use_rslora)
    save_adapter(state, tmp_path / "out")
    back = load_adapter(tmp_path / "out", shape=shape)
    assert same_tensors(state, back) and back.digest == state.digest


def test_tensors_that_share_one_buffer_can_be_saved(tmp_path):
    buffer = torch.randn(4 * 32 * 2)
    pair = (buffer[:128].view(4, 32), buffer[128:].view(32, 4))
    state = SessionState.from_tensors("s", {(2, "q_proj"): pair}, 8.0)
    save_adapter(state, tmp_path / "out")
    assert same_tensors(load(tmp_path / "out"), state)


def test_an_edited_state_is_refused(tmp_path):
    save_adapter(make_state(), tmp_path / "out")
    path = tmp_path / "out" / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors[f"{Q2}.lora_A.weight"][0, 0] += 1
    save_file(tensors, path)
    refused(tmp_path / "out", "damaged or edited")


@pytest.mark.parametrize("content", ["{", "[]", '{"format_version": 1}', '{"session_id": "a", "digest": "b"}'])
def test_a_damaged_record_is_refused(tmp_path, content):
    save_adapter(make_state(), tmp_path / "out")
    (tmp_path / "out" / "pss_state.json").write_text(content)
    refused(tmp_path / "out", "pss_state.json")


def test_saving_never_replaces_anything(tmp_path):
    save_adapter(make_state(), tmp_path / "out")
    with pytest.raises(ConfigError, match="exists; name a new or an empty folder"):
        save_adapter(make_state(seed=1), tmp_path / "out")
    with pytest.raises(StateFormatError, match="not finite"):
        save_adapter(SessionState.from_tensors("b", nan_tensors(), 1.0), tmp_path / "b")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_leaves_no_half_folder(tmp_path, file_size_limit):
    with file_size_limit(4096), pytest.raises(CapacityError, match="bytes needed"):
        save_adapter(make_state(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# ---- folders of others


def test_a_plain_adapter_is_imported_with_its_origin_unknown(tmp_path):
    state = load(write_adapter(tmp_path / "My Adapter"))
    assert state.session_id == "my-adapter"
    assert state.meta == StateMeta(base_model="somebody/tiny")
    assert load(tmp_path / "My Adapter", session_id="mine").session_id == "mine"


@pytest.mark.parametrize(
    "prefix", ["base_model.model.model.", "base_model.model.base_model.model.model.", "model.", "base_model.model.",
               "base_model.model.model.language_model.", "base_model.model.language_model.model.", ""],
)  # fmt: skip
@pytest.mark.parametrize("suffix", [".weight", ".default.weight"])
@pytest.mark.parametrize("use_shape", [True, False])
def test_every_spelling_of_tensor_names_loads_the_same(tmp_path, prefix, suffix, use_shape):
    template = prefix + "layers.{layer}.{parent}.{module}.lora_{side}" + suffix
    folder = write_adapter(tmp_path / "x", named(QV, template), alpha_pattern={"layers.3.self_attn.q_proj": 16})
    state = load_adapter(folder, shape=SHAPE if use_shape else None)
    assert [pair.scaling for pair in state.factors.values()] == [2.0, 2.0, 4.0, 2.0]
    assert all(torch.equal(state.factors[key].a, QV[key][0]) for key in QV)


@pytest.mark.parametrize(
    "modules", [["q_proj"], ["q_proj", "o_proj"], ["k_proj", "v_proj"], ["up_proj"], ["down_proj"], list(TARGETS)]
)
@pytest.mark.parametrize("rank", [1, 3, 33, 48])
def test_any_modules_and_any_rank_load(tmp_path, modules, rank):
    keys = [(layer, module) for layer in (2, 3) for module in modules]
    folder = write_adapter(
        tmp_path / "x", named(make_tensors(keys, rank)), target_modules=modules, r=rank, lora_alpha=64
    )
    state = load(folder)
    assert set(state.factors) == set(keys)
    assert {pair.scaling for pair in state.factors.values()} == {64 / rank}


@pytest.mark.parametrize(
    "declared",
    [
        {"target_modules": "all-linear", "layers_to_transform": [2, 3]},
        {"target_modules": r".*layers\.(2|3)\..*_proj", "layers_to_transform": None},
        {"target_modules": list(TARGETS), "layers_pattern": "layers"},
        {"target_modules": list(TARGETS), "layers_pattern": ["h", "layers"]},
        {"target_modules": [f"{layer}.{p}" for layer in (2, 3) for p in ("self_attn.q_proj", "self_attn.k_proj",
            "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")],
         "layers_to_transform": None},
        {"modules_to_save": [], "bias": "all", "use_dora": False, "lora_dropout": 0.1, "revision": None,
         "target_modules": list(TARGETS), "exclude_modules": ["lm_head"], "auto_mapping": None, "eva_config": None},
    ],
)  # fmt: skip
def test_every_way_to_declare_the_same_targets_loads_the_same(tmp_path, declared):
    state = load(write_adapter(tmp_path / "x", named(make_tensors()), **declared))
    assert state.digest == SessionState.from_tensors("x", make_tensors(), 8.0).digest


def test_rank_and_alpha_patterns_follow_the_first_match(tmp_path):
    folder = write_adapter(
        tmp_path / "x",
        named(make_tensors(QV_KEYS, RANKS)),
        r=3,
        use_rslora=True,
        rank_pattern={"^model.layers.2.self_attn.q_proj": 1, r"layers\.3\..*q_proj": 33, "q_proj": 5},
        alpha_pattern={"v_proj": 6, r".*\.2\..*": 7},
    )
    scaling = {key: pair.scaling for key, pair in load(folder).factors.items()}
    root = math.sqrt(3)
    assert scaling == {
        (2, "q_proj"): 7.0,
        (2, "v_proj"): 6 / root,
        (3, "q_proj"): 8 / math.sqrt(33),
        (3, "v_proj"): 6 / root,
    }


EXTRA = torch.zeros(4, 4)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (f"{Q2}.base_layer.weight", "base_layer.weight .*a copy of base weights"),
        ("base_model.model.lm_head.base_layer.weight", "lm_head.base_layer.weight"),
        (f"{Q2}.lora_magnitude_vector.weight", "DoRA is not supported"),
        (f"{Q2}.lora_magnitude_vector", "DoRA is not supported"),
        (f"{Q2}.lora_B.bias", "bias tensors are not supported"),
        (f"{Q2}.base_layer.bias", "bias tensors are not supported"),
        ("base_model.model.lm_head.lora_A.weight", r"lm_head.lora_A.weight \(F32 \[4, 4\], 64 bytes\): .*output head"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "embedding"),
        ("base_model.model.model.unembed_tokens.lora_A.weight", "output head"),
        ("base_model.model.model.layers.2.mlp.gate.lora_A.weight", "gate.lora_A.weight .*unknown tensor"),
        ("base_model.model.model.layers.2.mlp.q_proj.lora_A.weight", "unknown tensor"),
        ("base_model.model.vision.model.layers.2.self_attn.q_proj.lora_A.weight", "unknown tensor"),
        (f"{Q2}.lora_a", "unknown tensor"),
        (f"{Q2}.lora_A.default.weight", "are the same factor"),
        (
            "base_model.model.model.layers.2.self_attn.k_proj.lora_A.weight",
            "k_proj.lora_A.weight has no lora_B beside it",
        ),
        (
            "base_model.model.model.layers.2.self_attn.k_proj.lora_B.weight",
            "k_proj.lora_B.weight has no lora_A beside it",
        ),
    ],
)
def test_a_tensor_that_would_be_ignored_is_refused_by_name(tmp_path, name, match):
    refused(write_adapter(tmp_path / "x", {**named(QV), name: EXTRA}), match)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', LORA is needed"),
        ({"peft_type": None}, "peft_type"),
        ({"use_dora": True}, "use_dora is True"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"layer_replication": [[0, 4], [2, 4]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4', which changes the base weights"),
        ({"r": 8}, "q_proj.lora_A.weight has rank 4, the configuration says 8"),
        ({"r": 0}, "r is 0, an integer of 1 or more"),
        ({"r": True}, "r is True"),
        ({"r": "4"}, "r is '4'"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"lora_alpha": 10**400}, "lora_alpha is 1000"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
        ({"rank_pattern": {"v_proj": 5}}, "v_proj.lora_A.weight has rank 4, the configuration says 5"),
        ({"rank_pattern": ["v_proj"]}, "rank_pattern is"),
        ({"rank_pattern": {"(v_proj": 5}}, r"rank_pattern: pattern '\(v_proj': a group is not closed"),
        ({"alpha_pattern": {"v_proj": "8"}}, r"alpha_pattern\['v_proj'\] is '8'"),
        ({"target_modules": None}, "target_modules is None; name the modules"),
        ({"target_modules": []}, r"target_modules is \[\]"),
        ({"target_modules": [3]}, "target_modules holds 3"),
        (
            {"target_modules": ["q_proj", "v_proj", "o_proj"]},
            "6 modules, 2 have no tensors: model.layers.2.self_attn.o_proj",
        ),
        ({"target_modules": ["q_proj", "v_proj", "lm_head"]}, "'lm_head' matches no module; choices: q_proj"),
        ({"target_modules": ["q_proj"]}, "does not declare the module of tensor .*v_proj.lora_A"),
        ({"target_modules": "all-linear"}, "14 modules, 10 have no tensors"),
        ({"exclude_modules": ["v_proj"]}, "does not declare the module of tensor .*v_proj"),
        ({"layers_to_transform": None}, "8 modules, 4 have no tensors: model.layers.0"),
        ({"layers_to_transform": [1, 2, 3]}, "6 modules, 2 have no tensors: model.layers.1"),
        ({"layers_to_transform": [2, 3, 9]}, "layers_to_transform names layer 9, which has no tensors"),
        ({"layers_to_transform": 3}, "does not declare the module of tensor .*layers.2"),
        ({"layers_to_transform": [-1]}, "layers_to_transform holds -1"),
        ({"layers_pattern": "h"}, "does not declare"),
        ({"base_model_name_or_path": 3}, "base_model_name_or_path is 3"),
    ],
)
def test_a_configuration_that_means_something_else_is_refused(tmp_path, config, match):
    refused(write_adapter(tmp_path / "x", **config), match)


def test_saved_modules_are_named_with_their_size(tmp_path):
    tensors = {**named(QV), "base_model.model.lm_head.weight": torch.zeros(100, 32)}
    refused(write_adapter(tmp_path / "x", tensors, modules_to_save=["lm_head"]), r"lm_head.weight \(12800 bytes\)")


def test_a_bias_setting_without_bias_tensors_is_harmless(tmp_path):
    assert load(write_adapter(tmp_path / "x", bias="lora_only")).max_rank == 4


def test_an_adapter_below_the_cut_names_the_layer(tmp_path):
    keys = [(layer, "q_proj") for layer in (0, 1)]
    folder = write_adapter(
        tmp_path / "x", named(make_tensors(keys)), target_modules=["q_proj"], layers_to_transform=[0, 1]
    )
    refused(folder, r"layers.0.self_attn.q_proj.lora_A.weight: layer 0 is outside the session layers 2\.\.3")


def test_another_model_is_refused_with_both_numbers(tmp_path):
    folder = write_adapter(tmp_path / "x")
    with pytest.raises(StateFormatError, match="lora_A in_features is 32, the model's q_proj has 64"):
        load_adapter(folder, shape=StateShape(4, {**TARGETS, "q_proj": (64, 32)}, 2))
    with pytest.raises(StateFormatError, match="module q_proj is not in this model; choices: qkv_proj"):
        load_adapter(folder, shape=StateShape(4, {"qkv_proj": (32, 64)}, 2))


def test_a_rank_over_the_limit_is_refused_with_both_numbers(tmp_path):
    folder = write_adapter(tmp_path / "x", named(make_tensors(QV_KEYS, 65)), r=65)
    refused(folder, "rank 65 is over max_rank 64")


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({}, "no LoRA tensor"),
        (named({k: (a[:3], b) for k, (a, b) in QV.items()}), "rank 3 in .*lora_A.weight and 4 in .*lora_B.weight"),
        (named({k: (a[0], b) for k, (a, b) in QV.items()}), "lora_A.weight has 1 dimensions"),
        (named({k: (a.double(), b) for k, (a, b) in QV.items()}), "is F64; choices: F32, BF16, F16"),
        (named({k: (a[:0], b[:, :0]) for k, (a, b) in QV.items()}), "at least 1"),
        (named({k: (a / 0, b) for k, (a, b) in QV.items()}), "not finite"),
    ],
)
def test_tensors_that_are_no_factors_are_refused(tmp_path, tensors, match):
    refused(write_adapter(tmp_path / "x", tensors), match)


def test_names_of_two_models_in_one_file_are_refused(tmp_path):
    tensors = named({k: QV[k] for k in QV_KEYS[:2]})
    tensors |= named(
        {k: QV[k] for k in QV_KEYS[2:]}, "model.language_model.layers.{layer}.{parent}.{module}.lora_{side}.weight"
    )
    refused(write_adapter(tmp_path / "x", tensors), "named for different models")


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(StateFormatError, match="no such adapter folder"):
        load(tmp_path / "none")
    folder = write_adapter(tmp_path / "x")
    path = folder / "adapter_model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    refused(folder, "adapter_model.safetensors: truncated")
    path.unlink()
    refused(folder, "adapter_model.safetensors: no such file")
    (folder / "adapter_model.bin").write_bytes(b"pickle")
    refused(folder, "adapter_model.bin: a pickle, which is never loaded")
    (folder / "adapter_config.json").write_text('{"r": NaN}')
    path.write_bytes(data)
    refused(folder, "adapter_config.json: not valid JSON: NaN is not allowed")
    (folder / "adapter_config.json").write_text(" " * (1 << 20) + "{}")
    refused(folder, "larger than 1048576 bytes")
    (folder / "adapter_config.json").unlink()
    refused(folder, "adapter_config.json: no such file")


def test_the_written_configuration_is_the_standard_one(tmp_path):
    save_adapter(make_state(meta=StateMeta(base_model="tiny"), rank=4, alpha=8), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["layers_to_transform"] == [2, 3]
    assert config["target_modules"] == sorted(TARGETS)
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8, "tiny")
    assert (config["rank_pattern"], config["alpha_pattern"]) == ({}, {})
    assert len(load_file(tmp_path / "out" / "adapter_model.safetensors")) == 2 * len(ALL_KEYS)
