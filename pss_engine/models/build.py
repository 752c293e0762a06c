"""From named tensors to a Transformer: fused projections, shape checks, the fingerprint of the weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.models.checkpoint import Checkpoint
from pss_engine.models.config import ModelConfig
from pss_engine.models.packing import WeightPacker
from pss_engine.models.rope import RotaryEmbedding
from pss_engine.models.transformer import DecoderLayer, Linear, Transformer
from pss_engine.ops.quantized import QuantizedWeight

SAMPLED_VALUES = 512


class WeightReader:
    """Reads tensors of a checkpoint once each, checks shapes, and hashes a sample of every tensor.

    The fingerprint is sha256 over (name, shape, first values) of the tensors in the order read: cheap for models of any
    size, and different for other weights, another quantisation or another geometry.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint, self.dtype, self.device = checkpoint, dtype, device
        self._names = checkpoint.names()
        self._hash = hashlib.sha256()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def plain(self, name: str, *shape: int) -> Tensor:
        """A small tensor (a norm, a bias) on the device in the model's dtype."""
        tensor = self(name, *shape)
        if isinstance(tensor, QuantizedWeight):
            raise ConfigError(f"tensor {name!r} is {tensor.format.name}; norms and biases must be floats")
        return tensor.to(self.device, self.dtype)

    def __call__(self, name: str, *shape: int) -> Tensor | QuantizedWeight:
        """A tensor as it is stored."""
        if name not in self._names:
            raise ConfigError(f"model {str(self._checkpoint.path)!r} has no tensor {name!r}")
        tensor = self._checkpoint.tensor(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"tensor {name!r} has shape {tuple(tensor.shape)}, the config says {shape}")
        self._hash.update(f"{name}{tuple(tensor.shape)}".encode())
        self._hash.update(_first_values(tensor).float().numpy().tobytes())
        return tensor

    @property
    def fingerprint(self) -> str:
        return self._hash.hexdigest()


def build(
    read: WeightReader,
    config: ModelConfig,
    rope: RotaryEmbedding,
    num_session_layers: int,
    weights: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Transformer:
    """Assemble the network; ``progress(done, total)`` is called once per layer. ``weights``: see ``load_model``."""
    h, v = config.hidden_size, config.vocab_size
    pack = WeightPacker(read.dtype, read.device, weights)
    tied = config.tie_word_embeddings or "lm_head.weight" not in read
    embedding = pack([read("model.embed_tokens.weight", v, h)])
    layers = []
    for index in range(config.num_layers):
        layers.append(_layer(read, pack, config, index))
        if progress:
            progress(index + 1, config.num_layers)
    norm = read.plain("model.norm.weight", h)
    head = embedding if tied else pack([read("lm_head.weight", v, h)])
    return Transformer(config, num_session_layers, rope, embedding, layers, norm, Linear(head))


def _layer(read: WeightReader, pack: WeightPacker, config: ModelConfig, index: int) -> DecoderLayer:
    prefix, h = f"model.layers.{index}.", config.hidden_size
    has_bias = {"qkv": config.qkv_bias, "o": config.o_bias, "gate_up": config.mlp_bias, "down": config.mlp_bias}

    def fused(linear: str) -> Linear:
        block = "self_attn." if linear in ("qkv", "o") else "mlp."
        targets = config.lora_targets_of[linear]
        names = [(f"{prefix}{block}{t.name}", t.out_features, t.in_features) for t in targets]
        weights = [read(f"{name}.weight", rows, columns) for name, rows, columns in names]
        biases = [read.plain(f"{name}.bias", rows) for name, rows, _ in names] if has_bias[linear] else []
        return Linear(pack(weights), torch.cat(biases) if biases else None)

    return DecoderLayer(
        index=index,
        config=config,
        input_norm=read.plain(f"{prefix}input_layernorm.weight", h),
        qkv=fused("qkv"),
        o=fused("o"),
        post_norm=read.plain(f"{prefix}post_attention_layernorm.weight", h),
        gate_up=fused("gate_up"),
        down=fused("down"),
    )


def _first_values(tensor: Tensor | QuantizedWeight) -> Tensor:
    if isinstance(tensor, QuantizedWeight):
        tensor = tensor.rows(slice(0, -(-SAMPLED_VALUES // tensor.in_features))).dequantize()
    return tensor.flatten()[:SAMPLED_VALUES]
