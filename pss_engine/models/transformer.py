"""The network, with its cut: shared layers below it, session layers from it on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.models.batch import ForwardBatch
from pss_engine.models.config import ModelConfig
from pss_engine.models.rope import RotaryEmbedding
from pss_engine.ops.linear import gather_rows, linear
from pss_engine.ops.packed_weight import PackedWeight
from pss_engine.ops.transformer import add_rms_norm, rms_norm, silu_mul


@dataclass(frozen=True)
class Linear:
    """``y = x W^T + b``.

    Attributes:
        weight: [out, in] plain, or packed for the CPU kernels: its rows in as many pieces as it has formats.
        bias: [out] or None.
        int8_rows: take x in int8 where a piece is quantised; see ``ops.linear``.
    """

    weight: Tensor | tuple[PackedWeight, ...]
    bias: Tensor | None = None
    int8_rows: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self.weight, Tensor):
            return F.linear(x, self.weight, self.bias)
        sizes = [piece.out_features for piece in self.weight]
        biases = [None] * len(sizes) if self.bias is None else self.bias.split(sizes)
        parts = [
            linear(x, piece, bias, self.int8_rows and piece.is_quantized)
            for piece, bias in zip(self.weight, biases, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def unpacked(self) -> Tensor:
        """The weight [out, in] as it is where it is plain, else a float32 copy."""
        if isinstance(self.weight, Tensor):
            return self.weight
        pieces = [piece.unpack().float() for piece in self.weight]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


@dataclass(frozen=True)
class DecoderLayer:
    """One pre-norm decoder layer with fused q-k-v and gate-up projections."""

    index: int
    config: ModelConfig
    input_norm: Tensor
    qkv: Linear
    o: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, batch: ForwardBatch) -> Tensor:
        config = self.config
        x = rms_norm(hidden, self.input_norm, config.rms_norm_eps)
        heads = self._project("qkv", self.qkv, x, batch).unflatten(-1, (-1, config.head_dim))
        mixed = batch.attention(self.index, heads, cos, sin).flatten(1)
        x, hidden = add_rms_norm(self._project("o", self.o, mixed, batch), hidden, self.post_norm, config.rms_norm_eps)
        return hidden + self._project(
            "down", self.down, silu_mul(self._project("gate_up", self.gate_up, x, batch)), batch
        )

    def each_linear(self, change: Callable[[Linear], Linear]) -> DecoderLayer:
        """The same layer with changed projections."""
        return replace(
            self, qkv=change(self.qkv), o=change(self.o), gate_up=change(self.gate_up), down=change(self.down)
        )

    @property
    def linears(self) -> dict[str, Linear]:
        """Its projections by name."""
        return {"qkv": self.qkv, "o": self.o, "gate_up": self.gate_up, "down": self.down}

    def _project(self, name: str, linear: Linear, x: Tensor, batch: ForwardBatch) -> Tensor:
        y = linear(x)
        return y if batch.adapters is None else batch.adapters(self.index, name, x, y)


class Transformer:
    """A decoder-only model as two functions of a batch.

    ``logits = session(batch, shared(batch))``. ``shared`` is the same for every session and for the base model, since
    no state touches a layer below ``num_shared_layers``; ``batch.adapters`` acts in ``session`` only.

    On the CPU in float32, with the compiled extension, the bits of a token's hidden state and logits depend on its own
    sequence and state alone: not on the other rows, on how the sequence was cut into forwards, or on the threads.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_session_layers: int,
        rope: RotaryEmbedding,
        embedding: Tensor | tuple[PackedWeight, ...],
        layers: list[DecoderLayer],
        final_norm: Tensor,
        lm_head: Linear,
    ) -> None:
        self.config = config
        self.num_shared_layers = config.num_layers - num_session_layers
        self.rope, self.embedding, self.layers = rope, embedding, layers
        self.final_norm, self.lm_head = final_norm, lm_head

    @property
    def session_layers(self) -> range:
        """Indices of the layers that states may touch."""
        return range(self.num_shared_layers, self.config.num_layers)

    def shared(self, batch: ForwardBatch) -> Tensor:
        """Embedding and shared layers; returns the hidden state at the cut [T, H]."""
        hidden = self.embed(batch.token_ids)
        base = ForwardBatch(batch.token_ids, batch.positions, batch.attention, None, batch.logit_rows)
        return self._run(self.layers[: self.num_shared_layers], hidden, base)

    def embed(self, token_ids: Tensor) -> Tensor:
        """token_ids [T] int64; returns [T, H]."""
        if isinstance(self.embedding, Tensor):
            return F.embedding(token_ids, self.embedding)
        rows: Tensor = gather_rows(token_ids, self.embedding[0])
        return rows

    def session(self, batch: ForwardBatch, hidden: Tensor) -> Tensor:
        """Session layers, final norm and head; returns logits [R, V] of ``batch.logit_rows``."""
        return self.logits(self._run(self.layers[self.num_shared_layers :], hidden, batch)[batch.logit_rows])

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head of hidden [R, H]; returns [R, V]."""
        return self.lm_head(rms_norm(hidden, self.final_norm, self.config.rms_norm_eps))

    @property
    def is_packed(self) -> bool:
        """Whether all of its weights are packed for the CPU kernels."""
        return not isinstance(self.lm_head.weight, Tensor)

    @property
    def is_quantized(self) -> bool:
        """Whether some of its weights are held quantised."""
        linears = [self.lm_head, *(linear for layer in self.layers for linear in layer.linears.values())]
        return any(
            piece.is_quantized for linear in linears if not isinstance(linear.weight, Tensor) for piece in linear.weight
        )

    def with_int8_rows(self) -> Transformer:
        """The same network, taking activations in int8 before quantised weights; the weights are shared."""

        def int8(linear: Linear) -> Linear:
            return replace(linear, int8_rows=True)

        return self._with([layer.each_linear(int8) for layer in self.layers], int8(self.lm_head))

    def _with(self, layers: list[DecoderLayer], lm_head: Linear) -> Transformer:
        return Transformer(
            self.config, len(self.session_layers), self.rope, self.embedding, layers, self.final_norm, lm_head
        )

    def _run(self, layers: list[DecoderLayer], hidden: Tensor, batch: ForwardBatch) -> Tensor:
        cos, sin = self.rope(batch.positions)
        for layer in layers:
            hidden = layer(hidden, cos, sin, batch)
        return hidden
