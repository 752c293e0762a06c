"""The ops of ``pss_engine._C`` that only training asks for: in float32, whatever the dtype of what they are given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pss_engine.ops.contract import rows_contiguous
from pss_engine.ops.extension import load_extension
from pss_engine.ops.products import Product

_C = load_extension()


def products(wanted: Sequence[Product]) -> None:
    _C.products(
        [
            (
                out.data_ptr(),
                left.data_ptr(),
                right.data_ptr(),
                out.size(0),
                left.size(1),
                out.size(1),
                out.stride(0),
                *left.stride(),
                *right.stride(),
                alpha,
                add,
            )
            for out, left, right, alpha, add in wanted
        ]
    )


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    dtype = x.dtype
    dy, x, weight = _rows(dy), _rows(x), weight.float().contiguous()
    residual = None if residual is None else residual.float().contiguous()
    dx = torch.empty(x.shape)
    _C.rms_norm_backward(
        dx.data_ptr(),
        dy.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        *x.shape,
        dy.stride(0),
        x.stride(0),
        eps,
    )
    return dx.to(dtype)


def silu_mul_backward(dy: Tensor, gate_up: Tensor) -> Tensor:
    dtype = gate_up.dtype
    dy, gate_up = _rows(dy), _rows(gate_up)
    dx = torch.empty(gate_up.shape)
    _C.silu_mul_backward(dx.data_ptr(), dy.data_ptr(), gate_up.data_ptr(), *dy.shape, dy.stride(0), gate_up.stride(0))
    return dx.to(dtype)


def cross_entropy(logits: Tensor, labels: Tensor, with_grad: bool) -> Tensor:
    losses = torch.empty(len(logits))
    _C.cross_entropy(
        losses.data_ptr(), logits.data_ptr(), labels.data_ptr(), *logits.shape, logits.stride(0), with_grad
    )
    return losses


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    num_sequences, num_rows, num_heads, _ = q.shape
    out, shares = torch.empty(q.shape), torch.empty(num_sequences, num_heads, num_rows, num_rows)
    for s in range(num_sequences):
        heads, into, seen = (_rows(q[s]), _rows(k[s]), _rows(v[s])), (shares[s], out[s]), _rows(mask[s])
        _C.masked_attention(*_sequence(*heads, scale), seen.data_ptr(), seen.stride(0), *(t.data_ptr() for t in into))
    return out.to(q.dtype), shares.to(q.dtype)


def masked_attention_backward(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, shares: Tensor, scale: float) -> Tensor:
    num_sequences, num_rows, num_heads, head_dim = q.shape
    grads = torch.empty(num_sequences, num_rows, num_heads + 2 * k.shape[2], head_dim)
    shares = shares.float()
    for s in range(num_sequences):
        heads, y = (_rows(q[s]), _rows(k[s]), _rows(v[s])), _rows(dy[s])
        _C.masked_attention_backward(
            *_sequence(*heads, scale), y.data_ptr(), y.stride(0), shares[s].data_ptr(), grads[s].data_ptr()
        )
    return grads.to(q.dtype)


def _sequence(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[int | float, ...]:
    addresses, strides = (t.data_ptr() for t in (q, k, v)), (t.stride(0) for t in (q, k, v))
    return (*addresses, *q.shape[:2], *k.shape[1:], *strides, scale)


def _rows(x: Tensor) -> Tensor:
    wide = x.float()
    return wide if rows_contiguous(wide) else wide.contiguous()
