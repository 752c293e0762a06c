"""``retrieve_topk`` on a GPU: candidates from a backend's kernels, sorted and fused by torch; nothing is read back.

A candidate is one 64-bit key, the score in its upper half and the passage's place among all ranks, reversed, in its
lower: larger is better, and no two are equal.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pss_engine.ops.search import DenseSearch, Retrieved, SparseSearch

NOTHING = -(2**63)
"""The key of no passage."""
_LOW_32 = 0xFFFFFFFF
Candidates = Callable[..., Tensor]


def by_candidates(dense_candidates: Candidates, sparse_candidates: Candidates) -> Callable[..., Retrieved]:
    """The op, from what gives the keys of the best ``depth`` of every block of passages, [B, any] int64."""

    def retrieve_topk(*args: object) -> Retrieved:
        return _retrieve(dense_candidates, sparse_candidates, *args)  # type: ignore[arg-type]

    return retrieve_topk


def _retrieve(
    dense_candidates: Candidates,
    sparse_candidates: Candidates,
    ranks: Tensor,
    dense: DenseSearch | None,
    sparse: SparseSearch | None,
    groups: Tensor,
    shares: Tensor,
    masks: Tensor | None,
    mask_ids: Tensor,
    k: int,
) -> Retrieved:
    device, depth = ranks.device, shares.shape[1]
    in_rank_order = ranks.argsort()
    places = torch.empty_like(ranks)
    places[in_rank_order] = torch.arange(len(ranks), dtype=torch.int32, device=device)
    mask_rows = mask_ids[groups.long()]
    held = torch.ones(1, 1, dtype=torch.uint8, device=device) if masks is None else masks.view(torch.uint8)
    num_dense = 0 if dense is None else len(dense.queries)
    keys = []
    if dense is not None:
        found = dense_candidates(
            dense.queries, dense.vectors, dense.scales, places, held, mask_rows[:num_dense].contiguous(), depth
        )
        keys.append(_best(found, depth))
    if sparse is not None:
        lists = (sparse.terms, sparse.starts, sparse.indptr, sparse.passages, sparse.weights)
        found = sparse_candidates(*lists, places, held, mask_rows[num_dense:].contiguous(), depth)
        keys.append(_best(found, depth))
    best = torch.cat(keys)
    filled = best != NOTHING
    place = _LOW_32 - (best & _LOW_32)
    ordered = (best >> 32).int()
    bits = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
    list_scores = torch.where(filled, bits.view(torch.float32), 0.0)
    list_passages = torch.where(filled, in_rank_order[torch.where(filled, place, 0)].int(), -1)
    passages, fused = _fuse(place, filled, groups, shares, len(mask_ids), len(ranks), k)
    return Retrieved(
        torch.where(passages < 0, -1, in_rank_order[passages.clamp(min=0)]).int(), fused, list_passages, list_scores
    )


def _best(keys: Tensor, depth: int) -> Tensor:
    """The ``depth`` largest of each row, best first; what is missing is ``NOTHING``."""
    count = min(depth, keys.shape[1])
    best = keys.new_full((keys.shape[0], depth), NOTHING)
    best[:, :count] = keys.topk(count, dim=1).values
    return best


def _fuse(
    place: Tensor, filled: Tensor, groups: Tensor, shares: Tensor, num_groups: int, num_passages: int, k: int
) -> tuple[Tensor, Tensor]:
    """Places and fused shares of the best k of each group; equal places of a group are one, their shares added."""
    group = groups.long()[:, None].expand_as(place)
    # what is not filled sorts behind all groups
    key = torch.where(filled, group * num_passages + place, num_groups * num_passages).flatten()
    key, order = key.sort()
    total = torch.where(filled, shares, 0).flatten()[order].cumsum(0)
    last = torch.ones_like(key, dtype=torch.bool)
    last[:-1] = key[1:] != key[:-1]
    last &= key < num_groups * num_passages
    before = torch.where(last, total, 0).cummax(0).values.roll(1)
    before[:1] = 0
    fused = torch.where(last, total - before, 0)
    # by group, then by share, then by place: stable sorts from the last criterion on
    by_share = fused.sort(descending=True, stable=True).indices
    row = torch.where(fused > 0, key // num_passages, num_groups)[by_share]
    by_group = row.sort(stable=True).indices
    row, chosen = row[by_group], by_share[by_group]
    starts = torch.searchsorted(row, torch.arange(num_groups + 1, device=row.device))
    position = torch.arange(len(row), device=row.device) - starts[row]
    kept = (row < num_groups) & (position < k)
    # one column more takes what is not kept
    target = torch.where(kept, row * (k + 1) + position, k)
    passages = place.new_full((num_groups * (k + 1),), -1).scatter_(
        0, target, torch.where(kept, key[chosen] % num_passages, -1)
    )
    sums = fused.new_zeros(num_groups * (k + 1)).scatter_(0, target, torch.where(kept, fused[chosen], 0))
    return passages.view(num_groups, k + 1)[:, :k], sums.view(num_groups, k + 1)[:, :k].contiguous()
