"""The serving forward on the CPU: all layers of a side of the cut in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pss_engine.engine.adapters import StateAdapters
from pss_engine.engine.attention import PagedAttention
from pss_engine.errors import BackendUnavailable
from pss_engine.kv import KVCache
from pss_engine.metrics import EngineCounters
from pss_engine.models import ForwardBatch, LoadedModel
from pss_engine.models.transformer import DecoderLayer, Linear, Transformer
from pss_engine.ops.decoder import DecoderLayers, LayerShape, LayerWeights, Projection
from pss_engine.ops.extension import load_extension
from pss_engine.ops.lora import LoraSlice
from pss_engine.state import StateSlots


def why_not_fused(model: LoadedModel) -> str:
    """Why the layers of this model run op by op; empty where they run in one call."""
    if model.device.type != "cpu":
        return f"made for the CPU, the model is on {model.device.type}"
    try:
        load_extension()
    except BackendUnavailable as error:
        return str(error)
    return "" if model.transformer.is_packed else f"activations are {model.dtype}; made for float32"


class FusedTransformer:
    """``shared`` and ``session`` of a :class:`Transformer`, the same to the bit, over one cache and its slots.

    Both take the batches of a serving step only: paged attention, states in slots. They work in place on the hidden
    state that they return or are given.
    """

    def __init__(self, transformer: Transformer, cache: KVCache, slots: StateSlots, counters: EngineCounters) -> None:
        self._transformer, self._counters = transformer, counters
        config = transformer.config
        shape = LayerShape(
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.intermediate_size,
            config.rotary_dim,
            config.rms_norm_eps,
            config.head_dim**-0.5,
        )
        layers = [self._layer(layer, cache, slots) for layer in transformer.layers]
        self._layers = DecoderLayers(shape, layers, transformer.lm_head.int8_rows)
        self._turned: Tensor | None = None

    def shared(self, batch: ForwardBatch) -> Tensor:
        """Embedding and shared layers; returns the hidden state at the cut [T, H]."""
        hidden = self._transformer.embed(batch.token_ids)
        return self._run(range(self._transformer.num_shared_layers), hidden, batch, None)

    def session(self, batch: ForwardBatch, hidden: Tensor) -> Tensor:
        """Session layers, final norm and head; returns logits [R, V] of ``batch.logit_rows``."""
        assert batch.adapters is None or isinstance(batch.adapters, StateAdapters)
        slot_ids = batch.adapters.slot_ids if batch.adapters else None
        hidden = self._run(self._transformer.session_layers, hidden, batch, slot_ids)
        return self._transformer.logits(hidden[batch.logit_rows])

    def _run(self, layers: range, hidden: Tensor, batch: ForwardBatch, slot_ids: Tensor | None) -> Tensor:
        attention = batch.attention
        assert isinstance(attention, PagedAttention)
        if batch.positions is not self._turned:  # both sides of the cut have the same, most often
            self._turned, self._angles = batch.positions, self._transformer.rope(batch.positions)
        cos, sin = self._angles
        self._counters.num_adapter_calls += self._layers.run(
            hidden,
            cos,
            sin,
            attention.kv_rows,
            attention.block_tables,
            attention.query_starts,
            attention.context_lens,
            slot_ids,
            layers,
        )
        return hidden

    def _layer(self, layer: DecoderLayer, cache: KVCache, slots: StateSlots) -> LayerWeights:
        config = layer.config
        return LayerWeights(
            layer.input_norm,
            layer.post_norm,
            {
                name: _projection(linear, _targets(layer.index, name, self._transformer, slots))
                for name, linear in layer.linears.items()
            },
            cache.k[layer.index],
            cache.v[layer.index],
            config.windows[layer.index],
        )


def _projection(linear: Linear, targets: Sequence[LoraSlice]) -> Projection:
    assert not isinstance(linear.weight, torch.Tensor)
    return Projection(linear.weight, linear.bias, targets)


def _targets(index: int, linear: str, transformer: Transformer, slots: StateSlots) -> list[LoraSlice]:
    if index not in transformer.session_layers:
        return []
    targets = transformer.config.lora_targets_of[linear]
    return [slots.views[index, target.name].at(target.offset) for target in targets]
