"""Decoder layers of a serving step in one call on the CPU: the bits of ``models/transformer.py``, op by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops.extension import DTYPES, FACTOR_TYPES, NO_WINDOW, load_extension
from pss_engine.ops.lora import LoraSlice
from pss_engine.ops.packed_weight import FORMATS, PackedWeight


@dataclass(frozen=True)
class Projection:
    """``y = x W^T + b`` of a layer; W is the rows of ``weights`` one after another.

    Attributes:
        bias: [sum of out_features] float32 or None.
        targets: what states add to slices of it.
    """

    weights: Sequence[PackedWeight]
    bias: Tensor | None = None
    targets: Sequence[LoraSlice] = ()


@dataclass(frozen=True)
class LayerWeights:
    """One layer: norms [H] float32, its projections, its caches [num_blocks, P, K, D]; window None: sees everything."""

    input_norm: Tensor
    post_norm: Tensor
    projections: Mapping[str, Projection]
    k_cache: Tensor
    v_cache: Tensor
    window: int | None


@dataclass(frozen=True)
class LayerShape:
    """What all layers have in common; scale: of the attention's scores."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rotary_dim: int
    eps: float
    scale: float


class DecoderLayers:
    """Layers that run in one parallel region, their activations in an arena that is kept.

    Args:
        int8_rows: take the rows of activations in int8 where a weight is quantised; see ``ops.linear``.

    Raises:
        BackendUnavailable: the compiled extension is not there.
        ConfigError: a tensor that is not float32 where it must be, not contiguous, or on another device than the CPU.
    """

    def __init__(self, shape: LayerShape, layers: Sequence[LayerWeights], int8_rows: bool = False) -> None:
        extension = load_extension()
        for layer in layers:
            _check(shape, layer)
        self._kept = layers  # the extension has addresses only
        cache = layers[0].k_cache
        self._decoder = extension.Decoder(
            shape.hidden_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.intermediate_size,
            shape.rotary_dim // 2,
            cache.shape[0],
            cache.shape[1],
            DTYPES[cache.dtype],
            shape.eps,
            shape.scale,
            int8_rows,
            [_native(extension, layer) for layer in layers],
        )

    def run(
        self,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_rows: Tensor,
        block_tables: Tensor,
        query_starts: Tensor,
        context_lens: Tensor,
        slot_ids: Tensor | None,
        layers: range,
    ) -> int:
        """Run ``layers`` on hidden [T, H] float32, in place.

        Args:
            cos, sin: [T, rotary_dim / 2] float32.
            kv_rows: [T] int64, where each token's keys and values go.
            block_tables, query_starts, context_lens: as ``paged_attention`` takes them.
            slot_ids: [T] int32, -1 = base model; None: no row has a state.

        Returns:
            Slices of projections to which states were added.

        Raises:
            ConfigError: an index out of range; nothing is changed then.
        """
        try:
            num_slices: int = self._decoder.run(
                hidden.data_ptr(),
                cos.data_ptr(),
                sin.data_ptr(),
                kv_rows.data_ptr(),
                block_tables.data_ptr(),
                query_starts.data_ptr(),
                context_lens.data_ptr(),
                0 if slot_ids is None else slot_ids.data_ptr(),
                hidden.size(0),
                block_tables.size(0),
                block_tables.size(1),
                layers.start,
                layers.stop,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return num_slices


def _check(shape: LayerShape, layer: LayerWeights) -> None:
    floats = [layer.input_norm, layer.post_norm, *(p.bias for p in layer.projections.values() if p.bias is not None)]
    tensors = [*floats, layer.k_cache, layer.v_cache]
    if any(t.dtype != torch.float32 for t in floats):
        raise ConfigError(f"decoder layers: norms and biases are {[str(t.dtype) for t in floats]}, must be float32")
    if any(t.device.type != "cpu" or not t.is_contiguous() for t in tensors):
        raise ConfigError("decoder layers: norms, biases and caches must be contiguous and on the CPU")
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    wanted = {
        "qkv": (shape.hidden_size, q + 2 * kv),
        "o": (q, shape.hidden_size),
        "gate_up": (shape.hidden_size, 2 * shape.intermediate_size),
        "down": (shape.intermediate_size, shape.hidden_size),
    }
    for name, (in_features, out_features) in wanted.items():
        weights = layer.projections[name].weights
        found = sum(weight.out_features for weight in weights)
        if found != out_features or any(weight.in_features != in_features for weight in weights):
            shapes = [(weight.out_features, weight.in_features) for weight in weights]
            raise ConfigError(f"decoder layers: {name} is {shapes}, must be {(out_features, in_features)} in all")


def _native(extension: object, layer: LayerWeights) -> object:
    projections = [_native_projection(extension, layer.projections[name]) for name in ("qkv", "o", "gate_up", "down")]
    return extension.DecoderLayer(  # type: ignore[attr-defined]
        layer.input_norm.data_ptr(),
        layer.post_norm.data_ptr(),
        *projections,
        layer.k_cache.data_ptr(),
        layer.v_cache.data_ptr(),
        layer.window or NO_WINDOW,
    )


def _native_projection(extension: object, projection: Projection) -> object:
    parts, offset = [], 0
    for weight in projection.weights:
        bias = 0 if projection.bias is None else projection.bias[offset:].data_ptr()
        parts.append((weight.panels.data_ptr(), bias, weight.out_features, FORMATS.index(weight.format)))
        offset += weight.out_features
    native = extension.Projection(parts, projection.weights[0].in_features)  # type: ignore[attr-defined]
    for target in projection.targets:
        num_slots, max_rank, in_features = target.lora_a.shape
        native.add_target(
            target.lora_a.data_ptr(),
            target.lora_b.data_ptr(),
            target.scaling.data_ptr(),
            target.ranks.data_ptr(),
            num_slots,
            max_rank,
            in_features,
            target.lora_b.shape[1],
            target.lora_a.stride(0),
            target.lora_b.stride(0),
            FACTOR_TYPES[target.lora_a.dtype],
            target.offset,
        )
    return native
