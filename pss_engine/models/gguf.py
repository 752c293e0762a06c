"""GGUF files through the gguf package: metadata to a transformers config, tensor names to Hugging Face's."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.models.checkpoint import readable
from pss_engine.models.gguf_blocks import read_tensor
from pss_engine.ops.quantized import QuantizedWeight

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "phi3": "phi3"}

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFCheckpoint:
    """One GGUF file; tensors as they are stored."""

    def __init__(self, path: Path) -> None:
        from pss_engine.models.gguf_reader import GGUFReader

        self.path = path
        with readable(path):
            self._reader = GGUFReader(path)
        self._arch = str(self._field("general.architecture"))
        if self._arch not in ARCHITECTURES:
            raise ConfigError(f"GGUF architecture {self._arch!r} is not supported; choices: {', '.join(ARCHITECTURES)}")

    @cached_property
    def _tensors(self) -> dict[str, ReaderTensor]:
        return {self._hf_name(tensor.name): tensor for tensor in self._reader.tensors}

    def config(self) -> PretrainedConfig:
        from transformers import AutoConfig

        num_heads = int(self._arch_field("attention.head_count"))
        hidden_size = int(self._arch_field("embedding_length"))
        window = self._arch_field("attention.sliding_window", None)
        kwargs: dict[str, Any] = {
            "vocab_size": int(self._tensors["model.embed_tokens.weight"].shape[1]),
            "hidden_size": hidden_size,
            "intermediate_size": int(self._arch_field("feed_forward_length")),
            "num_hidden_layers": int(self._arch_field("block_count")),
            "num_attention_heads": num_heads,
            "num_key_value_heads": int(self._arch_field("attention.head_count_kv", num_heads)),
            "max_position_embeddings": int(self._arch_field("context_length")),
            "rms_norm_eps": float(self._arch_field("attention.layer_norm_rms_epsilon")),
            "rope_theta": float(self._arch_field("rope.freq_base", 10000.0)),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "eos_token_id": int(self._field("tokenizer.ggml.eos_token_id")),
            "head_dim": int(self._arch_field("attention.key_length", hidden_size // num_heads)),
        }
        if window:
            kwargs["sliding_window"] = int(window)
        scaling = self._arch_field("rope.scaling.type", None)
        if scaling not in (None, "none") or any(name.startswith("rope_f") for name in self._tensors):
            raise ConfigError(
                f"GGUF rope scaling {scaling or 'by frequency factors'!r} is not supported; use the safetensors folder"
            )
        return AutoConfig.for_model(ARCHITECTURES[self._arch], **kwargs)

    def names(self) -> set[str]:
        return set(self._tensors)

    def tensor(self, name: str) -> Tensor | QuantizedWeight:
        with readable(self.path):
            tensor = read_tensor(self._tensors[name])
        if self._arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = self._arch_field("attention.head_count" if "q_proj" in name else "attention.head_count_kv")
            order = _half_split(tensor.shape[0], int(heads))
            return tensor.rows(order) if isinstance(tensor, QuantizedWeight) else tensor[order]
        return tensor

    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        with readable(self.path):
            return AutoTokenizer.from_pretrained(self.path.parent, gguf_file=self.path.name, trust_remote_code=False)

    def _hf_name(self, name: str) -> str:
        if not name.startswith("blk."):
            return _TOP.get(name, name)
        _, index, rest = name.split(".", 2)
        module, _, kind = rest.rpartition(".")
        if self._arch == "phi3" and module == "ffn_up":
            return f"model.layers.{index}.mlp.gate_up_proj.{kind}"
        return f"model.layers.{index}.{_LAYER.get(module, module)}.{kind}"

    def _field(self, key: str, *default: Any) -> Any:
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default:
            return default[0]
        raise ConfigError(f"GGUF file {str(self.path)!r} has no field {key!r}")

    def _arch_field(self, key: str, *default: Any) -> Any:
        return self._field(f"{self._arch}.{key}", *default)


def _half_split(num_rows: int, num_heads: int) -> Tensor:
    """Where each row of our order is in GGUF's: rope turns interleaved pairs there, half-split ones here."""
    return torch.arange(num_rows).view(num_heads, -1, 2).transpose(1, 2).flatten()
