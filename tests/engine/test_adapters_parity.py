"""PEFT is the oracle for any adapter it can save: the engine gives its logits and its tokens, alone and in a batch."""

from __future__ import annotations

import peft
import pytest
import torch

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.errors import StateFormatError
from pss_engine.state import load_adapter, save_adapter
from tests.engine.adapters import random_state
from tests.tiny import tiny_hf_model, tiny_model

PROMPT = "what was said before"
MAX_NEW_TOKENS = 8
SESSION_LAYERS = [2, 3]
LLAMA = {
    "q": {"r": 1, "lora_alpha": 3, "target_modules": ["q_proj"]},
    "q-and-o": {"r": 3, "lora_alpha": 10, "target_modules": ["q_proj", "o_proj"]},
    "k-and-v": {"r": 33, "lora_alpha": 7, "target_modules": ["k_proj", "v_proj"]},
    "up": {"r": 48, "lora_alpha": 64, "target_modules": ["up_proj"], "use_rslora": True},
    "down": {"r": 3, "lora_alpha": 6, "target_modules": ["down_proj"]},
    "last-layer": {"r": 4, "lora_alpha": 16, "target_modules": ["v_proj", "gate_proj"], "layers_to_transform": [3]},
    "uneven-layers": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": r".*(layers\.2\.self_attn\.k_proj|layers\.3\.mlp\.down_proj)",
        "layers_to_transform": None,
    },
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj", "up_proj"],
        "use_rslora": True,
        "rank_pattern": {"layers.2.self_attn.q_proj": 1, r".*\.3\..*_proj": 33, "^model.layers.2.mlp.up_proj": 3},
        "alpha_pattern": {"v_proj": 5, "model.layers.3.mlp.up_proj": 9},
    },
    "everything": {
        "r": 48,
        "lora_alpha": 48,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
}
PHI3 = {
    "qkv": {"r": 3, "lora_alpha": 9, "target_modules": ["qkv_proj"]},
    "gate-and-up": {"r": 33, "lora_alpha": 33, "target_modules": ["gate_up_proj"], "use_rslora": True},
}
ADAPTERS = {"llama": LLAMA, "phi3": PHI3}
CASES = [(family, name) for family, adapters in ADAPTERS.items() for name in adapters]


def saved_by_peft(folder, family, name):
    """An adapter with random factors in ``folder``, and PEFT's model with it."""
    torch.manual_seed(len(name))
    fixed = {"layers_to_transform": SESSION_LAYERS, "init_lora_weights": False, "task_type": "CAUSAL_LM"}
    config = {**fixed, **ADAPTERS[family][name]}
    model = peft.get_peft_model(tiny_hf_model(family), peft.LoraConfig(**config)).eval()
    model.save_pretrained(folder)
    return model


def peft_greedy(model, ids):
    """Logits [MAX_NEW_TOKENS, V] and the tokens they choose."""
    ids, rows = list(ids), []
    with torch.inference_mode():
        for _ in range(MAX_NEW_TOKENS):
            rows.append(model(torch.tensor([ids])).logits[0, -1])
            ids.append(int(rows[-1].argmax()))
    return torch.stack(rows), ids[-MAX_NEW_TOKENS:]


def engine_of(family, states):
    engine = Engine(tiny_model(family), EngineConfig(kv_cache_bytes=2**22, num_state_slots=max(2, len(states))))
    for state in states:
        engine.add_state(state)
    return engine


def request(session):
    return Request(PROMPT, SamplingParams(max_new_tokens=MAX_NEW_TOKENS, ignore_eos=True), session=session)


@pytest.mark.parametrize(("family", "name"), CASES)
def test_logits_and_tokens_are_those_of_peft(family, name, tmp_path, monkeypatch):
    oracle = saved_by_peft(tmp_path / name, family, name)
    engine = engine_of(family, [load_adapter(tmp_path / name)])
    seen, run = [], engine._runner.run

    def recorded(chunks):
        rows = run(chunks)
        seen.extend(rows)
        return rows

    monkeypatch.setattr(engine._runner, "run", recorded)
    output = engine.generate([request(name)])[0]
    logits, tokens = peft_greedy(oracle, engine.model.tokenizer.prompt(PROMPT))
    torch.testing.assert_close(torch.stack(seen), logits, rtol=1e-4, atol=1e-3)
    assert output.token_ids == tokens
    with oracle.disable_adapter():
        base, _ = peft_greedy(oracle, engine.model.tokenizer.prompt(PROMPT))
    assert (logits - base).abs().max() > 0.1, "the adapter must matter"


def test_adapters_of_every_shape_share_one_batch(tmp_path):
    oracles = {name: saved_by_peft(tmp_path / name, "llama", name) for name in LLAMA}
    engine = engine_of("llama", [load_adapter(tmp_path / name) for name in LLAMA])
    sessions = [None, *LLAMA, None]
    outputs = dict(zip(sessions, engine.generate([request(session) for session in sessions]), strict=True))
    ids = engine.model.tokenizer.prompt(PROMPT)
    expected = {name: peft_greedy(oracle, ids)[1] for name, oracle in oracles.items()}
    assert {name: outputs[name].token_ids for name in LLAMA} == expected
    assert outputs[None].token_ids == engine_of("llama", []).generate([request(None)])[0].token_ids


def test_a_small_state_in_a_slot_that_a_large_one_left_finds_nothing_of_it(tmp_path):
    """One slot in turn: rank 48 in all modules, then rank 1 in one."""
    for name in ("everything", "q"):
        saved_by_peft(tmp_path / name, "llama", name)
    states = [load_adapter(tmp_path / name) for name in ("everything", "q")]
    engine = Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**22, num_state_slots=1))
    for state in states:
        engine.add_state(state)
    engine.generate([request("everything")])
    alone = engine_of("llama", states[1:]).generate([request("q")])[0]
    assert engine.generate([request("q")])[0].token_ids == alone.token_ids


def test_a_state_of_the_engine_is_the_same_adapter_in_peft(tmp_path):
    model = tiny_model()
    state = random_state(model, "s", seed=5, rank=3, modules=("k_proj", "down_proj"), layers=[3])
    theirs = peft.PeftModel.from_pretrained(tiny_hf_model("llama"), save_adapter(state, tmp_path / "s")).eval()
    output = engine_of("llama", [state]).generate([request("s")])[0]
    assert output.token_ids == peft_greedy(theirs, model.tokenizer.prompt(PROMPT))[1]


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"use_dora": True, "target_modules": ["q_proj"]}, "dora"),
        ({"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]}, "modules_to_save|lm_head"),
        ({"lora_bias": True, "target_modules": ["q_proj"]}, "bias"),
        ({"target_modules": ["q_proj", "lm_head"], "layers_to_transform": None}, "lm_head"),
        ({"target_modules": ["q_proj", "embed_tokens"], "layers_to_transform": None}, "embed"),
    ],
)
def test_what_the_engine_cannot_apply_is_refused_by_name(config, match, tmp_path):
    fields = {"r": 2, "lora_alpha": 4, "layers_to_transform": SESSION_LAYERS, "task_type": "CAUSAL_LM", **config}
    peft.get_peft_model(tiny_hf_model("llama"), peft.LoraConfig(**fields)).save_pretrained(tmp_path / "s")
    with pytest.raises(StateFormatError, match=rf"(?i){match}"):
        engine_of("llama", [load_adapter(tmp_path / "s")])
