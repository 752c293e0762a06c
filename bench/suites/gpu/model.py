"""A model with the shape of a real one and random weights: nothing is downloaded, all times are those of the shape."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from pss_engine.models import LoadedModel
from pss_engine.models.build import WeightReader, build
from pss_engine.models.config import ModelConfig
from pss_engine.models.rope import RotaryEmbedding
from pss_engine.models.source import ModelSource
from pss_engine.models.tokenizer import Tokenizer
from pss_engine.models.transformer import Transformer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
POOL = (1 << 22) + 3
"""Random values that fill all weights, over and over; odd, so that no two rows are alike."""


@dataclass(frozen=True)
class Shape:
    """What a Qwen2 config says, and how many layers states may touch."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    session_layers: int = 8

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


QWEN_7B = Shape("Qwen2.5-7B shape, random weights", 3584, 18944, 28, 28, 4, 152064)


class RandomCheckpoint:
    """The tensors of a Qwen2 model, made when they are read."""

    path = Path("random")

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        self._shape = shape
        self._pool = torch.randn(POOL, generator=torch.Generator().manual_seed(91)).to(dtype)

    def config(self) -> PretrainedConfig:
        from transformers import Qwen2Config

        sizes = {name: value for name, value in asdict(self._shape).items() if name not in ("name", "session_layers")}
        return Qwen2Config(**sizes, max_position_embeddings=32768, tie_word_embeddings=False)

    @cached_property
    def _sizes(self) -> dict[str, tuple[int, ...]]:
        s = self._shape
        kv = s.num_key_value_heads * s.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (s.hidden_size,),
            "post_attention_layernorm.weight": (s.hidden_size,),
            "self_attn.q_proj.weight": (s.hidden_size, s.hidden_size),
            "self_attn.k_proj.weight": (kv, s.hidden_size),
            "self_attn.v_proj.weight": (kv, s.hidden_size),
            "self_attn.o_proj.weight": (s.hidden_size, s.hidden_size),
            "self_attn.q_proj.bias": (s.hidden_size,),
            "self_attn.k_proj.bias": (kv,),
            "self_attn.v_proj.bias": (kv,),
            "mlp.gate_proj.weight": (s.intermediate_size, s.hidden_size),
            "mlp.up_proj.weight": (s.intermediate_size, s.hidden_size),
            "mlp.down_proj.weight": (s.hidden_size, s.intermediate_size),
        }
        outer = {
            "model.embed_tokens.weight": (s.vocab_size, s.hidden_size),
            "model.norm.weight": (s.hidden_size,),
            "lm_head.weight": (s.vocab_size, s.hidden_size),
        }
        return outer | {f"model.layers.{i}.{n}": v for i in range(s.num_hidden_layers) for n, v in layer.items()}

    def names(self) -> set[str]:
        return set(self._sizes)

    def tensor(self, name: str) -> torch.Tensor:
        shape = self._sizes[name]
        count = math.prod(shape)
        start = sum(name.encode()) * 7919 % POOL
        values = self._pool.roll(-start).repeat(-(-count // POOL))[:count].view(shape)
        return values.abs() * 0.1 + 1 if len(shape) == 1 and "norm" in name else values / shape[-1] ** 0.5

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Byte-level, a token a byte, with ChatML."""
        from transformers import PreTrainedTokenizerFast

        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        rust = RustTokenizer(BPE({token: i for i, token in enumerate([*SPECIAL, *alphabet])}, []))
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        rust.decoder = decoders.ByteLevel()
        rust.add_special_tokens(list(SPECIAL))
        return PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<|im_end|>", chat_template=CHATML)


def random_model(shape: Shape, device: str) -> LoadedModel:
    """The model on a device: bfloat16 on CUDA, float32 on the CPU."""
    place = torch.device(device)
    dtype = torch.float32 if place.type == "cpu" else torch.bfloat16
    checkpoint = RandomCheckpoint(shape, dtype)
    hf_config = checkpoint.config()
    config = ModelConfig.from_hf(hf_config)
    rope = RotaryEmbedding.from_hf(hf_config, config.rotary_dim, place)
    read = WeightReader(checkpoint, dtype, place)
    transformer: Transformer = build(read, config, rope, shape.session_layers)
    tokenizer = Tokenizer(checkpoint.tokenizer())
    source = ModelSource(shape.name, "hf", checkpoint.path)
    return LoadedModel(source, config, transformer, tokenizer, read.fingerprint, dtype, place)
