"""PEFT itself is the oracle: what it saves loads here, what is written here it loads, and the numbers are the same."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM, PreTrainedModel

from pss_engine.state import SessionState, StateShape, load_adapter, save_adapter
from pss_engine.state.shape import module_key
from tests.state.states import HIDDEN, INTERMEDIATE, KV, SHAPE, make_tensors

SIZES = {
    "vocab_size": 50,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
IDS = torch.tensor([[1, 5, 9, 3, 7, 20, 4]])
PHI3 = {
    "qkv_proj": (HIDDEN, HIDDEN + 2 * KV),
    "o_proj": (HIDDEN, HIDDEN),
    "gate_up_proj": (HIDDEN, 2 * INTERMEDIATE),
    "down_proj": (INTERMEDIATE, HIDDEN),
}


@functools.cache
def base(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    if family == "phi3":
        return Phi3ForCausalLM(Phi3Config(**SIZES, **ids)).eval()
    return LlamaForCausalLM(LlamaConfig(**SIZES, **ids)).eval()


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def applied_by_hand(family: str, state: SessionState) -> torch.Tensor:
    """Logits of the base model with ``y += scaling * (x A^T) B^T`` on the layers of the state."""
    hooks = []
    for (layer, module), pair in state.factors.items():

        def hook(_, args, y, pair=pair):
            return y + (args[0] @ pair.a.T) @ pair.b.T * pair.scaling

        hooks.append(base(family).get_submodule(module_key(layer, module)).register_forward_hook(hook))
    try:
        return logits(base(family))
    finally:
        for handle in hooks:
            handle.remove()


def saved_by_peft(folder, family="llama", **config):
    """An adapter with random factors, and the model that PEFT saved it from."""
    torch.manual_seed(1)
    fields = {"layers_to_transform": [2, 3], "init_lora_weights": False, "task_type": "CAUSAL_LM", **config}
    model = get_peft_model(copy.deepcopy(base(family)), LoraConfig(**fields)).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    "config",
    [
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        },
        {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "layers_to_transform": None},
        {"r": 4, "lora_alpha": 8, "target_modules": r".*\.[23]\.mlp\.(up|down)_proj", "layers_to_transform": None},
        {"r": 1, "lora_alpha": 3, "target_modules": ["q_proj"]},
        {"r": 3, "lora_alpha": 10, "target_modules": ["q_proj", "o_proj"]},
        {"r": 33, "lora_alpha": 7, "target_modules": ["k_proj", "v_proj"], "layers_pattern": "layers"},
        {"r": 48, "lora_alpha": 64, "target_modules": ["up_proj"], "use_rslora": True},
        {"r": 5, "lora_alpha": 64, "target_modules": ["down_proj"], "layers_to_transform": 3},
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "v_proj", "up_proj"],
            "use_rslora": True,
            "rank_pattern": {"layers.2.self_attn.q_proj": 2, r".*\.3\..*_proj": 6, "^model.layers.2.mlp.up_proj": 3},
            "alpha_pattern": {"v_proj": 5, "model.layers.3.mlp.up_proj": 9},
        },
    ],
)
def test_what_peft_saves_loads_here_with_the_same_effect(tmp_path, config):
    oracle = saved_by_peft(tmp_path / "peft", **config)
    shape = StateShape(4, SHAPE.targets, 0) if config["target_modules"] == "all-linear" else SHAPE
    state = load_adapter(tmp_path / "peft", shape=shape)
    for (layer, module), pair in state.factors.items():
        theirs = oracle.get_submodule(f"base_model.model.{module_key(layer, module)}")
        assert pair.scaling == theirs.scaling["default"]
        assert torch.equal(pair.a, theirs.lora_A["default"].weight)
        assert torch.equal(pair.b, theirs.lora_B["default"].weight)
    torch.testing.assert_close(applied_by_hand("llama", state), logits(oracle), rtol=0, atol=1e-5)
    assert not torch.allclose(logits(oracle), logits(base("llama")), atol=1e-2)


def test_fused_projections_load_the_same_way(tmp_path):
    oracle = saved_by_peft(tmp_path / "peft", "phi3", r=4, lora_alpha=8, target_modules=list(PHI3))
    state = load_adapter(tmp_path / "peft", shape=StateShape(4, PHI3, 2))
    torch.testing.assert_close(applied_by_hand("phi3", state), logits(oracle), rtol=0, atol=1e-5)


UNEVEN = [(2, "q_proj"), (3, "q_proj"), (3, "v_proj"), (3, "down_proj")]


@pytest.mark.parametrize("use_rslora", [False, True])
@pytest.mark.parametrize(
    ("keys", "rank", "alpha"),
    [
        ([(2, "q_proj"), (2, "o_proj"), (3, "q_proj"), (3, "o_proj")], 4, 8.0),
        ([(2, "k_proj"), (3, "k_proj")], 48, 64.0),
        ([(3, "up_proj")], 1, 1.0),
        (UNEVEN, dict(zip(UNEVEN, (1, 3, 33, 3), strict=True)), dict(zip(UNEVEN, (2.0, 10.0, 64.0, 0.3), strict=True))),
    ],
)
def test_what_is_written_here_loads_in_peft_with_the_same_effect(tmp_path, keys, rank, alpha, use_rslora):
    state = SessionState.from_tensors("s", make_tensors(keys, rank), alpha, use_rslora)
    save_adapter(state, tmp_path / "ours")
    model = PeftModel.from_pretrained(copy.deepcopy(base("llama")), tmp_path / "ours").eval()
    adapted = {name for name, module in model.named_modules() if hasattr(module, "lora_A")}
    assert adapted == {f"base_model.model.{module_key(*key)}" for key in keys}
    torch.testing.assert_close(logits(model), applied_by_hand("llama", state), rtol=0, atol=1e-5)
    assert not torch.allclose(logits(model), logits(base("llama")), atol=1e-2)
