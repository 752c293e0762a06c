"""Every family gives the logits of transformers, and the real model its tokens."""

from __future__ import annotations

import pytest
import torch

from pss_engine.models import DenseAttention, ForwardBatch, LoadedModel, load_model
from tests.real import real_model
from tests.tiny import FAMILIES, NUM_SESSION_LAYERS, save_tiny, tiny_hf_model, tiny_model

VARIANTS = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"head_dim": 16}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}}),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    ("qwen2", {}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 7}),
    ("phi3", {}),
    ("phi3", {"sliding_window": 6}),
    (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0 + 0.1 * i for i in range(4)],
                "long_factor": [2.0 + 0.1 * i for i in range(4)],
                "original_max_position_embeddings": 64,
            }
        },
    ),
]


def logits(model: LoadedModel, segments: list[list[int]]) -> torch.Tensor:
    lens = [len(segment) for segment in segments]
    ids = [token for segment in segments for token in segment]
    batch = ForwardBatch(
        token_ids=torch.tensor(ids),
        positions=torch.cat([torch.arange(n) for n in lens]),
        attention=DenseAttention(model.config, lens),
        adapters=None,
        logit_rows=torch.arange(len(ids)),
    )
    with torch.inference_mode():
        return model.transformer.session(batch, model.transformer.shared(batch))


@pytest.mark.parametrize(
    ("family", "overrides"), VARIANTS, ids=lambda v: v if isinstance(v, str) else "-".join(v) or "plain"
)
def test_logits_equal_transformers(tmp_path, family, overrides):
    ours = load_model(
        str(save_tiny(tmp_path, family, **overrides)), num_session_layers=NUM_SESSION_LAYERS, device="cpu"
    )
    theirs = tiny_hf_model(family, **overrides)
    ids = torch.randint(3, ours.config.vocab_size, (23,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(logits(ours, [ids]), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_segments_do_not_see_each_other(family):
    model = tiny_model(family)
    a, b = [5, 9, 11, 40], [7, 8, 30, 31, 32, 33]
    together = logits(model, [a, b])
    torch.testing.assert_close(together, torch.cat([logits(model, [a]), logits(model, [b])]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_session_layers", [1, 3, 4])
def test_the_cut_changes_no_logit(num_session_layers):
    plain = tiny_model("llama")
    moved = load_model(plain.name, num_session_layers=num_session_layers, device="cpu")
    assert len(moved.transformer.session_layers) == num_session_layers
    torch.testing.assert_close(logits(moved, [[4, 5, 6]]), logits(plain, [[4, 5, 6]]), atol=0, rtol=0)


def test_real_weights_give_the_tokens_of_transformers():
    from transformers import AutoModelForCausalLM

    from pss_engine.config import EngineConfig
    from pss_engine.engine import Engine, Request, SamplingParams

    model = real_model()
    path = model.source.path
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ids = model.tokenizer.chat([{"role": "user", "content": "Tell me how a tide mill works."}])
    with torch.inference_mode():
        expected = theirs.generate(torch.tensor([ids]), do_sample=False, min_new_tokens=64, max_new_tokens=64)[
            0, len(ids) :
        ]
    exact = EngineConfig(activations="float32")
    output = Engine(model, exact).generate([Request(ids, SamplingParams(max_new_tokens=64, ignore_eos=True))])[0]
    eos = set(model.config.eos_token_ids)
    assert not eos & set(expected.tolist()), "min_new_tokens masks the end of turn, so the two runs must not reach it"
    assert output.token_ids == expected.tolist()
