"""The small ops of a decoder layer. Each is a formula in torch; dimension letters are listed in ``ops/__init__``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last dimension, statistics in float32.

    x [T, H], weight [H]; returns [T, H] in x's dtype.
    """
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + rotary_dim / 2) of each head by the angle of its position.

    x [T, N, D]; cos, sin [T, rotary_dim / 2] float32; features past rotary_dim pass through. Returns [T, N, D].
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    rotated = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
    return torch.cat(rotated, dim=-1)


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``; gate_up [T, 2 I] holds gate then up; returns [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
