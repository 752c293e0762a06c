"""The session layers while factors are learned: forward, and the gradients of the factors, without autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pss_engine.models import LoadedModel
from pss_engine.models.transformer import DecoderLayer, Transformer
from pss_engine.ops.backward import cross_entropy, rms_norm_backward, silu_mul_backward
from pss_engine.ops.masked_attention import masked_attention, masked_attention_backward
from pss_engine.ops.transformer import apply_rope, rms_norm, silu_mul
from pss_engine.writer.factor_math import FactorMath
from pss_engine.writer.frozen_linear import FrozenLinear
from pss_engine.writer.row_sets import RowSet
from pss_engine.writer.update_rows import LiveRows, UpdateRows

HEAD_ROWS = {"cpu": 128, "cuda": 1024}
"""Rows whose logits are in memory at once."""


@dataclass(frozen=True)
class FrozenLayer:
    """A decoder layer whose base never changes."""

    base: DecoderLayer
    qkv: FrozenLinear
    o: FrozenLinear
    gate_up: FrozenLinear
    down: FrozenLinear

    @classmethod
    def of(cls, layer: DecoderLayer) -> FrozenLayer:
        linears = (layer.qkv, layer.o, layer.gate_up, layer.down)
        return cls(layer, *map(FrozenLinear.of, linears))


@dataclass
class LayerTrace:
    """What the gradients of one layer need of its forward. ``hidden`` to ``v`` hold all rows, the rest the told ones in
    the last layer. ``shrunk`` is scaling x A^T by linear."""

    hidden: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    mixed: Tensor
    middle: Tensor
    gate_up: Tensor
    shrunk: dict[str, Tensor]


@dataclass
class Trace:
    """A forward of an update: its traces from the cut up, and the hidden states [told rows, H] of the last layer."""

    rows: UpdateRows
    cos: Tensor
    sin: Tensor
    layers: list[LayerTrace]
    hidden: Tensor


class SessionNetwork:
    """The layers above the writer's cut, the final norm and the head, frozen.

    On the CPU in float32, with the compiled extension, what is computed for a session has the same bits whichever
    sessions stand beside it.

    Args:
        num_layers: layers that get factors, from the top; at most those above the model's cut.
    """

    def __init__(self, model: LoadedModel, num_layers: int) -> None:
        whole = model.transformer
        self.config, self.dtype = model.config, model.dtype
        self.transformer = Transformer(
            whole.config, num_layers, whole.rope, whole.embedding, whole.layers, whole.final_norm, whole.lm_head
        )
        self.layers = [FrozenLayer.of(whole.layers[index]) for index in self.transformer.session_layers]
        self._head = FrozenLinear.of(whole.lm_head)
        self._scale = self.config.head_dim**-0.5

    @torch.no_grad()
    def forward(self, rows: UpdateRows, factors: FactorMath) -> Trace:
        """Run the layers; keeps what :meth:`backward` needs."""
        cos, sin = self.transformer.rope(rows.positions)
        trace = Trace(rows, cos, sin, [], rows.hidden)
        for layer in self.layers:
            trace.hidden = self._layer(layer, trace, factors, told_only=layer is self.layers[-1])
        return trace

    @torch.no_grad()
    def losses(self, hidden: Tensor, labels: Tensor, num_grads: int) -> tuple[Tensor, Tensor]:
        """Negative log likelihood [R] of labels [R] in nats, and the gradients of the first ``num_grads`` of them by
        hidden [R, H], before the final norm."""
        block = HEAD_ROWS[hidden.device.type]
        found = [
            self._head_losses(part, told, min(max(num_grads - index * block, 0), len(part)))
            for index, (part, told) in enumerate(zip(hidden.split(block), labels.split(block), strict=True))
        ]
        losses, grads = zip(*found, strict=True)
        return torch.cat(losses), torch.cat(grads)

    @torch.no_grad()
    def backward(self, trace: Trace, live: LiveRows, d_hidden: Tensor, factors: FactorMath) -> None:
        """Write the gradients of all factors; d_hidden [live told rows, H] is that of ``trace.hidden``."""
        cos, sin = live.of_all(trace.cos), live.of_all(trace.sin)
        grad = d_hidden
        for layer, kept in zip(reversed(self.layers), reversed(trace.layers), strict=True):
            last, first = layer is self.layers[-1], layer is self.layers[0]
            pick, rows = (live.of_told, live.told) if last else (live.of_all, live.all)
            d_middle, d_mixed = self._mlp_and_output_backward(layer, kept, pick, rows, grad, factors)
            if last:
                d_middle, d_mixed = live.spread(d_middle), live.spread(d_mixed)
            d_qkv = self._attention_backward(layer, trace, kept, live, d_mixed, cos, sin)
            hidden = live.of_all(kept.hidden)
            x = rms_norm(hidden, layer.base.input_norm, self.config.rms_norm_eps)
            dx = None if first else layer.qkv.backward(d_qkv)
            factors.backward((layer.base.index, "qkv"), d_qkv, x, live.of_all(kept.shrunk["qkv"]), dx, live.all)
            if dx is not None:
                norm, eps = layer.base.input_norm, self.config.rms_norm_eps
                grad = rms_norm_backward(dx, hidden, norm, eps, d_middle)

    def _layer(self, layer: FrozenLayer, trace: Trace, factors: FactorMath, told_only: bool) -> Tensor:
        config, base, rows = self.config, layer.base, trace.rows
        hidden, at, shrunk = trace.hidden, rows.all, {}
        x = rms_norm(hidden, base.input_norm, config.rms_norm_eps)
        qkv = layer.qkv(x)
        shrunk["qkv"] = factors.add((base.index, "qkv"), x, qkv, at)
        heads = qkv.unflatten(-1, (-1, config.head_dim))
        qk, v = heads.split([config.num_heads + config.num_kv_heads, config.num_kv_heads], dim=1)
        q, k = apply_rope(qk, trace.cos, trace.sin).split([config.num_heads, config.num_kv_heads], dim=1)
        mixed = torch.empty_like(q, memory_format=torch.contiguous_format)
        for group, mask in zip(at.groups, rows.masks(config.windows[base.index], at), strict=True):
            out, _ = masked_attention(group.take(q), group.take(k), group.take(v), mask, self._scale)
            group.put(mixed, out)
        mixed, before = mixed.flatten(1), hidden
        if told_only:
            mixed, before, at = mixed[rows.told_index], hidden[rows.told_index], rows.told
        middle = layer.o(mixed)
        shrunk["o"] = factors.add((base.index, "o"), mixed, middle, at)
        middle += before
        x = rms_norm(middle, base.post_norm, config.rms_norm_eps)
        gate_up = layer.gate_up(x)
        shrunk["gate_up"] = factors.add((base.index, "gate_up"), x, gate_up, at)
        x = silu_mul(gate_up)
        out = layer.down(x)
        shrunk["down"] = factors.add((base.index, "down"), x, out, at)
        trace.layers.append(LayerTrace(hidden, q, k, v, mixed, middle, gate_up, shrunk))
        return out.add_(middle)

    def _head_losses(self, hidden: Tensor, labels: Tensor, num_grads: int) -> tuple[Tensor, Tensor]:
        norm, eps = self.transformer.final_norm, self.config.rms_norm_eps
        logits = self._head(rms_norm(hidden, norm, eps)).float()
        first, rest = logits[:num_grads], logits[num_grads:]
        losses = [
            cross_entropy(first, labels[:num_grads], True),
            cross_entropy(rest, labels[num_grads:], False),
        ]
        if not num_grads:
            return losses[1], hidden[:0]
        d_normed = self._head.backward(first.to(hidden.dtype))
        return torch.cat(losses), rms_norm_backward(d_normed, hidden[:num_grads], norm, eps)

    def _mlp_and_output_backward(
        self,
        layer: FrozenLayer,
        kept: LayerTrace,
        pick: Callable[[Tensor], Tensor],
        rows: RowSet,
        grad: Tensor,
        factors: FactorMath,
    ) -> tuple[Tensor, Tensor]:
        """The gradients of ``middle``, which is the residual stream's too, and of ``mixed``."""
        at, eps = layer.base.index, self.config.rms_norm_eps
        gate_up, middle, mixed = pick(kept.gate_up), pick(kept.middle), pick(kept.mixed)
        dx = layer.down.backward(grad)
        factors.backward((at, "down"), grad, silu_mul(gate_up), pick(kept.shrunk["down"]), dx, rows)
        d_gate_up = silu_mul_backward(dx, gate_up)
        dx = layer.gate_up.backward(d_gate_up)
        x = rms_norm(middle, layer.base.post_norm, eps)
        factors.backward((at, "gate_up"), d_gate_up, x, pick(kept.shrunk["gate_up"]), dx, rows)
        d_middle = rms_norm_backward(dx, middle, layer.base.post_norm, eps, grad)
        d_mixed = layer.o.backward(d_middle)
        factors.backward((at, "o"), d_middle, mixed, pick(kept.shrunk["o"]), d_mixed, rows)
        return d_middle, d_mixed

    def _attention_backward(
        self,
        layer: FrozenLayer,
        trace: Trace,
        kept: LayerTrace,
        live: LiveRows,
        d_mixed: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        config, groups = self.config, live.all.groups
        q, k, v = live.of_all(kept.q), live.of_all(kept.k), live.of_all(kept.v)
        d_heads = q.new_empty(len(q), config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        dy = d_mixed.unflatten(-1, (-1, config.head_dim))
        for group, mask in zip(groups, trace.rows.masks(config.windows[layer.base.index], live.all), strict=True):
            heads = group.take(q), group.take(k), group.take(v)
            _, shares = masked_attention(*heads, mask, self._scale)
            group.put(d_heads, masked_attention_backward(group.take(dy), *heads, shares, self._scale))
        rotated = d_heads[:, : config.num_heads + config.num_kv_heads]
        rotated.copy_(apply_rope(rotated, cos, -sin))  # a rotation's transpose turns back
        return d_heads.flatten(1)
