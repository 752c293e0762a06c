"""The small ops of a decoder layer. Each is a formula in torch, differentiable, and kernels for serving.

Dimension letters are listed in ``ops/__init__``. On ``cpp`` and ``triton`` a row's bits depend on that row alone;
torch's vectorised loops end in scalar ones, so there a value may depend on how many rows stand beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.ops.contract import FLOATS, misfit, needs_gradient, rows_contiguous, seen
from pss_engine.ops.dispatch import REFERENCE, Impl, Op


class DifferentiableOp(Op):
    """An op whose reference is differentiable: that is what runs where a gradient flows through the first argument."""

    def __init__(self, name: str, reference: Callable[..., Any], check: Callable[..., None]) -> None:
        impls = (
            Impl("cpp", f"pss_engine.ops.cpp:{name}", devices=("cpu",)),
            Impl("triton", f"pss_engine.kernels.{name.removeprefix('add_')}:{name}", devices=("cuda",)),
        )
        super().__init__(name, reference, *impls, check=check)

    def __call__(self, *args: Any, backend: str | None = None) -> Any:
        if backend is None and needs_gradient(args[0]):
            backend = REFERENCE
        return super().__call__(*args, backend=backend)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last dimension, statistics in float32.

    x [T, H], any row stride; weight [H] in x's dtype. Returns [T, H] in x's dtype.
    """
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``(rms_norm(s), s)`` with ``s = x + residual`` rounded to their dtype; the norm is that of the rounded sum.

    x, residual [T, H], any row strides; weight [H], alike in dtype. Returns two [T, H].
    """
    total = x + residual
    return _rms_norm(total, weight, eps), total


def _apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + rotary_dim / 2) of each head by the angle of its position.

    x [T, N, D], any stride between tokens; cos, sin [T, rotary_dim / 2] float32; features past rotary_dim pass through.
    Returns [T, N, D] in x's dtype.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    rotated = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
    return torch.cat(rotated, dim=-1)


def _silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``; gate_up [T, 2 I] holds gate then up, any row stride; returns [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _check_rms_norm(x: Tensor, weight: Tensor, eps: float) -> None:
    if not (
        x.dim() == 2
        and weight.shape == x.shape[1:]
        and x.dtype == weight.dtype
        and x.dtype in FLOATS
        and rows_contiguous(x)
        and weight.is_contiguous()
        and weight.device == x.device
    ):
        raise misfit("rms_norm", "tensors", seen(x=x, weight=weight), "rows [T, H] and [H], alike in dtype and device")


def _check_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    _check_rms_norm(x, weight, eps)
    if not (
        residual.shape == x.shape
        and residual.dtype == x.dtype
        and residual.device == x.device
        and rows_contiguous(residual)
    ):
        raise misfit("add_rms_norm", "tensors", seen(x=x, residual=residual), "rows [T, H] twice, alike")


def _check_apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    if not (
        x.dim() == 3
        and cos.shape == sin.shape == (x.shape[0], cos.shape[-1])
        and 2 * cos.shape[-1] <= x.shape[2]
        and x.dtype in FLOATS
        and cos.dtype == sin.dtype == torch.float32
        and rows_contiguous(x)
        and cos.is_contiguous()
        and sin.is_contiguous()
        and x.device == cos.device == sin.device
    ):
        expected = "rows [T, N, D], float32 [T, at most D / 2] twice, on one device"
        raise misfit("apply_rope", "tensors", seen(x=x, cos=cos, sin=sin), expected)


def _check_silu_mul(gate_up: Tensor) -> None:
    if not (gate_up.dim() == 2 and gate_up.shape[1] % 2 == 0 and gate_up.dtype in FLOATS and rows_contiguous(gate_up)):
        raise misfit("silu_mul", "tensors", seen(gate_up=gate_up), "rows [T, 2 I]")


rms_norm = DifferentiableOp("rms_norm", _rms_norm, _check_rms_norm)
add_rms_norm = DifferentiableOp("add_rms_norm", _add_rms_norm, _check_add_rms_norm)
apply_rope = DifferentiableOp("apply_rope", _apply_rope, _check_apply_rope)
silu_mul = DifferentiableOp("silu_mul", _silu_mul, _check_silu_mul)
