"""Attention of short sequences under a mask, and its gradients: what training asks for, without a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops.contract import FLOATS, misfit, seen
from pss_engine.ops.dispatch import training_op


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """``softmax(scale q k^T + mask) v`` of S sequences; head n of N sees key head n K // N.

    Args:
        q: [S, t, N, D]; k, v: [S, t, K, D]; the heads of a row side by side.
        mask: [S, t, t] float32, 0 where a row sees another and -inf where not; every row sees one.

    Returns:
        [S, t, N, D], and the probabilities [S, N, t, t] that ``masked_attention_backward`` needs; in q's dtype.
    """
    num_sequences, num_rows, num_kv_heads, _ = k.shape
    scores = torch.bmm(_grouped(q, num_kv_heads), _heads(k).transpose(1, 2)).float().mul_(scale)
    scores.view(num_sequences, -1, num_rows, num_rows).add_(mask[:, None])
    shares = torch.softmax(scores, -1).to(q.dtype)
    return _ungrouped(torch.bmm(shares, _heads(v)), q), shares.view(num_sequences, -1, num_rows, num_rows)


def _attention_backward(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, shares: Tensor, scale: float) -> Tensor:
    """The gradients of q, k and v: with ``p`` the shares and ``ds = scale p (dy v^T - sum(p dy v^T))``,
    ``dq = ds k``, ``dk = ds^T q``, ``dv = p^T dy``, those of a key head summed over its query heads.

    Args:
        dy: [S, t, N, D], of the output; q, k, v as given to ``masked_attention``; shares [S, N, t, t] as it returned.

    Returns:
        [S, t, N + 2 K, D] in q's dtype: of q, of k, of v.
    """
    num_rows, num_kv_heads = k.shape[1:3]
    grads = q.new_empty(*q.shape[:2], q.shape[2] + 2 * num_kv_heads, q.shape[3])
    dq, dk, dv = grads.split([q.shape[2], num_kv_heads, num_kv_heads], dim=2)
    dy, q_rows = _grouped(dy, num_kv_heads), _grouped(q, num_kv_heads)
    shares = shares.view(len(q_rows), -1, num_rows)
    d_shares = torch.bmm(dy, _heads(v).transpose(1, 2))
    weighted = (d_shares * shares).float()
    d_scores = (weighted - shares * weighted.sum(-1, keepdim=True)).mul_(scale).to(q.dtype)
    dq.copy_(_ungrouped(torch.bmm(d_scores, _heads(k)), q))
    dk.copy_(_rows(torch.bmm(d_scores.transpose(1, 2), q_rows), k))
    dv.copy_(_rows(torch.bmm(shares.transpose(1, 2), dy), k))
    return grads


def _heads(x: Tensor) -> Tensor:
    """[S, t, K, D] as [S K, t, D]."""
    return x.transpose(1, 2).flatten(0, 1)


def _rows(x: Tensor, like: Tensor) -> Tensor:
    return x.unflatten(0, (like.shape[0], like.shape[2])).transpose(1, 2)


def _grouped(x: Tensor, num_kv_heads: int) -> Tensor:
    """[S, t, N, D] as [S K, G t, D]: the query heads that share a key head, one under another."""
    return x.unflatten(2, (num_kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)


def _ungrouped(x: Tensor, like: Tensor) -> Tensor:
    num_sequences, num_rows, _, head_dim = like.shape
    return x.view(num_sequences, -1, num_rows, head_dim).transpose(1, 2).reshape(like.shape)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> None:
    rows = q.shape[:2]
    if not (_heads_fit(q, k, v) and mask.shape == (*rows, rows[1]) and mask.dtype == torch.float32):
        raise _misfit("masked_attention", "mask [S, t, t] float32", q=q, k=k, v=v, mask=mask)


def _check_backward(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, shares: Tensor, scale: float) -> None:
    squares = (q.shape[0], q.shape[2], q.shape[1], q.shape[1])
    if not (_heads_fit(q, k, v) and dy.shape == q.shape and shares.shape == squares and shares.is_contiguous()):
        raise _misfit("masked_attention_backward", "shares [S, N, t, t]", dy=dy, q=q, k=k, v=v, shares=shares)


def _heads_fit(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return (
        q.dim() == k.dim() == 4
        and k.shape == v.shape
        and (*q.shape[:2], q.shape[3]) == (*k.shape[:2], k.shape[3])
        and q.shape[2] % k.shape[2] == 0
        and q.dtype == k.dtype == v.dtype
        and q.dtype in FLOATS
        and q.device == k.device == v.device
    )


def _misfit(op: str, expected: str, **tensors: Tensor) -> ConfigError:
    rows = f"q [S, t, N, D], k and v [S, t, K, D], {expected}, alike in dtype and device"
    return misfit(op, "tensors", seen(**tensors), rows)


masked_attention = training_op("masked_attention", _attention, _check)
masked_attention_backward = training_op("masked_attention_backward", _attention_backward, _check_backward)
