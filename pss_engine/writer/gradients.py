"""The gradients of what a decoder layer is made of, written out: nothing of the frozen base is recorded or kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.models.transformer import Linear
from pss_engine.ops.linear import linear
from pss_engine.ops.packed_weight import PackedWeight


@dataclass(frozen=True)
class FrozenLinear:
    """A dense layer and the gradient of its input: ``y = x W^T + b``, ``dx = dy W``.

    Attributes:
        transposed: W [out, in] plain, or W^T packed for the CPU kernels: a copy that lives as long as this.
    """

    forward: Linear
    transposed: Tensor | PackedWeight

    @classmethod
    def of(cls, layer: Linear) -> FrozenLinear:
        if isinstance(layer.weight, Tensor):
            return cls(layer, layer.weight)
        return cls(layer, PackedWeight.pack(layer.unpacked().T))

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)

    def backward(self, dy: Tensor) -> Tensor:
        """dy [T, out]; returns [T, in]."""
        if isinstance(self.transposed, PackedWeight):
            dx: Tensor = linear(dy, self.transposed)
            return dx
        return dy @ self.transposed


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Of ``weight x r``, r = 1 / sqrt(mean(x^2) + eps): ``r (g - x r^2 mean(g x))`` with g = weight dy; [T, H]."""
    wide, g = x.float(), dy.float() * weight
    r = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (r * (g - wide * (r * r * (g * wide).mean(-1, keepdim=True)))).to(x.dtype)


def silu_mul_backward(dy: Tensor, gate_up: Tensor) -> Tensor:
    """Of ``silu(gate) up``; dy [T, I], gate_up [T, 2 I]; returns [T, 2 I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    grads = torch.empty_like(gate_up)
    d_gate, d_up = grads.chunk(2, dim=-1)
    torch.mul(dy, F.silu(gate), out=d_up)
    d_gate.copy_(torch.ops.aten.silu_backward(dy * up, gate))
    return grads


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax attention of S sessions.

    Args:
        q: [S, t, N, D]; k, v: [S, t, K, D].
        mask: [S, t, t] float32, 0 where a row sees another and -inf where not.

    Returns:
        [S, t, N, D], and the probabilities [S K, G t, t] that :func:`attention_backward` needs (G = N / K).
    """
    num_sessions, num_rows, num_kv_heads, _ = k.shape
    scores = torch.bmm(_grouped(q, num_kv_heads), _heads(k).transpose(1, 2)).float().mul_(scale)
    scores.view(num_sessions, -1, num_rows, num_rows).add_(mask[:, None])
    shares = torch.softmax(scores, -1).to(q.dtype)
    return _ungrouped(torch.bmm(shares, _heads(v)), q), shares


def attention_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, shares: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; dy [S, t, N, D]."""
    num_kv_heads = k.shape[2]
    dy, q_rows = _grouped(dy, num_kv_heads), _grouped(q, num_kv_heads)
    d_shares = torch.bmm(dy, _heads(v).transpose(1, 2))
    weighted = (d_shares * shares).float()
    d_scores = (weighted - shares * weighted.sum(-1, keepdim=True)).mul_(scale).to(q.dtype)
    dq = _ungrouped(torch.bmm(d_scores, _heads(k)), q)
    dk = torch.bmm(d_scores.transpose(1, 2), q_rows)
    dv = torch.bmm(shares.transpose(1, 2), dy)
    return dq, _rows(dk, k), _rows(dv, v)


def _heads(x: Tensor) -> Tensor:
    """[S, t, K, D] as [S K, t, D]."""
    return x.transpose(1, 2).flatten(0, 1)


def _rows(x: Tensor, like: Tensor) -> Tensor:
    return x.unflatten(0, (like.shape[0], like.shape[2])).transpose(1, 2)


def _grouped(x: Tensor, num_kv_heads: int) -> Tensor:
    """[S, t, N, D] as [S K, G t, D]: the query heads that share a key head, one under another."""
    return x.unflatten(2, (num_kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)


def _ungrouped(x: Tensor, like: Tensor) -> Tensor:
    num_sessions, num_rows, _, head_dim = like.shape
    return x.view(num_sessions, -1, num_rows, head_dim).transpose(1, 2).reshape(like.shape)
