"""Tiny random models of every family, with a real tokenizer: made once per run, saved as any user's folder is."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from pss_engine.models import LoadedModel, load_model

FAMILIES = ("llama", "qwen2", "mistral", "phi3")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
}
NUM_SESSION_LAYERS = 2

_folders = tempfile.TemporaryDirectory(prefix="pss-tiny-")


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, one token a byte, with ChatML: any text goes in and comes back out."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    rust = RustTokenizer(BPE(vocab, []))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHATML,
    )


def tiny_hf_model(family: str, **overrides: Any) -> PreTrainedModel:
    """The same model as transformers runs it, float32, seeded."""
    torch.manual_seed(7)
    vocab_size = len(tiny_tokenizer())
    ids = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(family, vocab_size=vocab_size, **{**SIZES, **ids, **overrides})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # biases and norms start at trivial values, which would hide a wrong one
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save_tiny(folder: Path, family: str = "llama", **overrides: Any) -> Path:
    """Write model and tokenizer into ``folder``."""
    tiny_hf_model(family, **overrides).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@functools.cache
def tiny_model_folder(family: str = "llama") -> Path:
    return save_tiny(Path(_folders.name) / family, family)


@functools.cache
def tiny_model(family: str = "llama") -> LoadedModel:
    return load_model(str(tiny_model_folder(family)), num_session_layers=NUM_SESSION_LAYERS, device="cpu")
