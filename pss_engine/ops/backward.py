"""The gradients of the small ops of a decoder layer, and the loss with its own, for training without autograd."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.ops.contract import FLOATS, misfit, rows_contiguous, seen
from pss_engine.ops.dispatch import training_op


def _rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """The gradient of x in ``rms_norm(x, weight, eps)``, and what reaches x beside it.

    ``residual + r (g - x r^2 mean(g x))`` with r = 1 / sqrt(mean(x^2) + eps) and g = weight dy, computed in float32.

    Args:
        dy, x: [T, H]; weight: [H]; residual: [T, H] or None. All in one dtype.

    Returns:
        [T, H].
    """
    wide, g = x.float(), dy.float() * weight
    r = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    dx = r * (g - wide * (r * r * (g * wide).mean(-1, keepdim=True)))
    return (dx if residual is None else residual + dx).to(x.dtype)


def _silu_mul_backward(dy: Tensor, gate_up: Tensor) -> Tensor:
    """The gradient of gate_up in ``silu_mul(gate_up)``; dy [T, I], gate_up [T, 2 I]; returns [T, 2 I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.cat([torch.ops.aten.silu_backward(dy * up, gate), dy * F.silu(gate)], dim=-1)


def _cross_entropy(logits: Tensor, labels: Tensor, with_grad: bool) -> Tensor:
    """``log(sum_v exp(logits[t, v])) - logits[t, labels[t]]``, the negative log likelihood of each label in nats.

    Args:
        logits: [T, V] float32, any row stride; with_grad: they become ``softmax(logits) - onehot(labels)`` in place,
            the gradient of the loss of each row.
        labels: [T] int64.

    Returns:
        [T] float32.

    Raises:
        ConfigError: a label out of range (on the CPU), or tensors outside this contract; nothing is written then.
    """
    total = logits.logsumexp(-1)
    losses = total - logits.gather(1, labels[:, None])[:, 0]
    if with_grad:
        logits.sub_(total[:, None]).exp_()
        logits.scatter_add_(1, labels[:, None], logits.new_full((len(labels), 1), -1.0))
    return losses


def _check_rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> None:
    rows = (dy, x) if residual is None else (dy, x, residual)
    if not (
        x.dim() == 2
        and weight.shape == x.shape[1:]
        and x.dtype in FLOATS
        and all((t.shape, t.dtype, t.device) == (x.shape, x.dtype, x.device) for t in rows)
        and (weight.dtype, weight.device) == (x.dtype, x.device)
    ):
        found = seen(dy=dy, x=x, weight=weight, residual=residual)
        raise misfit("rms_norm_backward", "tensors", found, "rows [T, H] and [H], alike in dtype and device")


def _check_silu_mul_backward(dy: Tensor, gate_up: Tensor) -> None:
    if not (
        dy.dim() == gate_up.dim() == 2
        and gate_up.shape == (dy.shape[0], 2 * dy.shape[1])
        and dy.dtype in FLOATS
        and (dy.dtype, dy.device) == (gate_up.dtype, gate_up.device)
    ):
        found = seen(dy=dy, gate_up=gate_up)
        raise misfit("silu_mul_backward", "tensors", found, "rows [T, I] and [T, 2 I], alike in dtype and device")


def _check_cross_entropy(logits: Tensor, labels: Tensor, with_grad: bool) -> None:
    if not (
        logits.dim() == 2
        and labels.shape == logits.shape[:1]
        and (logits.dtype, labels.dtype) == (torch.float32, torch.int64)
        and rows_contiguous(logits)
        and labels.is_contiguous()
        and logits.device == labels.device
    ):
        found = seen(logits=logits, labels=labels)
        raise misfit("cross_entropy", "tensors", found, "rows [T, V] float32 and [T] int64 on one device")
    if (
        logits.device.type == "cpu"
        and len(labels)
        and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]
    ):
        found = {"labels": f"{int(labels.min())} to {int(labels.max())}"}
        raise misfit("cross_entropy", "values", found, f"0 to {logits.shape[1] - 1}")


rms_norm_backward = training_op("rms_norm_backward", _rms_norm_backward, _check_rms_norm_backward)
silu_mul_backward = training_op("silu_mul_backward", _silu_mul_backward, _check_silu_mul_backward)
cross_entropy = training_op("cross_entropy", _cross_entropy, _check_cross_entropy)
