"""The network, with its cut: shared layers below it, session layers from it on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn import functional as F

from pss_engine.models.batch import ForwardBatch
from pss_engine.models.config import ModelConfig
from pss_engine.models.rope import RotaryEmbedding
from pss_engine.ops.linear import PackedWeight, linear
from pss_engine.ops.transformer import add_rms_norm, apply_rope, rms_norm, silu_mul


@dataclass(frozen=True)
class Linear:
    """``y = x W^T + b``; weight [out, in], plain or packed for the CPU kernels; bias [out] or None."""

    weight: Tensor | PackedWeight
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self.weight, PackedWeight):
            y: Tensor = linear(x, self.weight, self.bias)
            return y
        return F.linear(x, self.weight, self.bias)

    def dense(self) -> Linear:
        """The same layer with a plain weight, which gradients flow through; a copy where it is packed."""
        return replace(self, weight=self.weight.unpack()) if isinstance(self.weight, PackedWeight) else self


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
        qk, v = heads.split([config.num_heads + config.num_kv_heads, config.num_kv_heads], dim=1)
        q, k = apply_rope(qk, cos, sin).split([config.num_heads, config.num_kv_heads], dim=1)
        mixed = batch.attention(self.index, q, k, v).flatten(1)
        x, hidden = add_rms_norm(self._project("o", self.o, mixed, batch), hidden, self.post_norm, config.rms_norm_eps)
        return hidden + self._project(
            "down", self.down, silu_mul(self._project("gate_up", self.gate_up, x, batch)), batch
        )

    def dense(self) -> DecoderLayer:
        return replace(
            self, qkv=self.qkv.dense(), o=self.o.dense(), gate_up=self.gate_up.dense(), down=self.down.dense()
        )

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
        embedding: Tensor | PackedWeight,
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
        if isinstance(self.embedding, PackedWeight):  # the head is tied to it, and the head's layout is the one kept
            hidden = self.embedding.rows(batch.token_ids)
        else:
            hidden = F.embedding(batch.token_ids, self.embedding)
        base = ForwardBatch(batch.token_ids, batch.positions, batch.attention, None, batch.logit_rows)
        return self._run(self.layers[: self.num_shared_layers], hidden, base)

    def session(self, batch: ForwardBatch, hidden: Tensor) -> Tensor:
        """Session layers, final norm and head; returns logits [R, V] of ``batch.logit_rows``."""
        hidden = self._run(self.layers[self.num_shared_layers :], hidden, batch)[batch.logit_rows]
        return self.lm_head(rms_norm(hidden, self.final_norm, self.config.rms_norm_eps))

    def with_dense_session_layers(self) -> Transformer:
        """The same network with plain weights in ``session``, for gradients; copies of packed ones live as long as it.

        Nothing is copied where the weights are plain already.
        """
        first = self.num_shared_layers
        layers = self.layers[:first] + [layer.dense() for layer in self.layers[first:]]
        return Transformer(
            self.config,
            len(self.session_layers),
            self.rope,
            self.embedding,
            layers,
            self.final_norm,
            self.lm_head.dense(),
        )

    def _run(self, layers: list[DecoderLayer], hidden: Tensor, batch: ForwardBatch) -> Tensor:
        cos, sin = self.rope(batch.positions)
        for layer in layers:
            hidden = layer(hidden, cos, sin, batch)
        return hidden
