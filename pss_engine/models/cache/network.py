"""A network as named tensors, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from pss_engine.models.config import ModelConfig
from pss_engine.models.rope import RotaryEmbedding
from pss_engine.models.transformer import DecoderLayer, Linear, Transformer
from pss_engine.ops.packed_weight import PackedWeight

Part = Tensor | PackedWeight


def parts_of(network: Transformer) -> dict[str, Part]:
    """Every weight of a packed network by name, in the order in which a step reads them; a tied head is left out."""
    parts: dict[str, Part] = dict(_pieces("embedding", network.embedding))
    for layer in network.layers:
        prefix = f"layers.{layer.index}."
        parts[f"{prefix}input_norm"], parts[f"{prefix}post_norm"] = layer.input_norm, layer.post_norm
        for name, linear in layer.linears.items():
            parts.update(_pieces(prefix + name, linear.weight))
            if linear.bias is not None:
                parts[f"{prefix}{name}.bias"] = linear.bias
    parts["final_norm"] = network.final_norm
    if network.lm_head.weight is not network.embedding:
        parts.update(_pieces("lm_head", network.lm_head.weight))
    parts["rope.inv_freq"] = network.rope.inv_freq
    return parts


def network_of(
    parts: Mapping[str, Part], config: ModelConfig, attention_factor: float, num_session_layers: int
) -> Transformer:
    """The network again. Raises KeyError where a part is missing."""

    def pieces(name: str) -> tuple[PackedWeight, ...]:
        found, at = [], 0
        while isinstance(piece := parts.get(f"{name}.{at}"), PackedWeight):
            found.append(piece)
            at += 1
        if not found:
            raise KeyError(f"{name}.0")
        return tuple(found)

    def tensor(name: str) -> Tensor:
        part = parts[name]
        assert isinstance(part, Tensor)
        return part

    def linear(name: str) -> Linear:
        return Linear(pieces(name), tensor(f"{name}.bias") if f"{name}.bias" in parts else None)

    def layer(index: int) -> DecoderLayer:
        prefix = f"layers.{index}."
        return DecoderLayer(
            index=index,
            config=config,
            input_norm=tensor(f"{prefix}input_norm"),
            qkv=linear(f"{prefix}qkv"),
            o=linear(f"{prefix}o"),
            post_norm=tensor(f"{prefix}post_norm"),
            gate_up=linear(f"{prefix}gate_up"),
            down=linear(f"{prefix}down"),
        )

    embedding = pieces("embedding")
    return Transformer(
        config,
        num_session_layers,
        RotaryEmbedding(tensor("rope.inv_freq"), attention_factor),
        embedding,
        [layer(index) for index in range(config.num_layers)],
        tensor("final_norm"),
        linear("lm_head") if "lm_head.0" in parts else Linear(embedding),
    )


def _pieces(name: str, weight: Tensor | tuple[PackedWeight, ...]) -> Iterator[tuple[str, PackedWeight]]:
    assert not isinstance(weight, Tensor)
    for at, piece in enumerate(weight):
        yield f"{name}.{at}", piece
