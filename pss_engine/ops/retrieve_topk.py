"""Search: score a batch of queries over a corpus, keep the best passages, fuse the rankings of each question."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.ops.dispatch import Impl, Op
from pss_engine.ops.search import DenseSearch, Retrieved, SparseSearch, check_ranges, check_search


def _reference(
    ranks: Tensor,
    dense: DenseSearch | None,
    sparse: SparseSearch | None,
    groups: Tensor,
    shares: Tensor,
    masks: Tensor | None,
    mask_ids: Tensor,
    k: int,
) -> Retrieved:
    """Ranks all passages for each query, keeps the best, and fuses the rankings of each group.

    Scores of passage n::

        dense, float   fma(q[H-1], v[n, H-1], ... fma(q[1], v[n, 1], fma(q[0], v[n, 0], 0))), each rounded to float32
        dense, int8    float32(sum_h q[h] v[n, h]) * scales[n], the sum exact, one rounding each
        sparse         weight of the query's first term in n, plus that of its second, ..., in float32; 0 where absent

    A ranking holds the ``depth`` highest scores, a sparse one only scores above 0; equal scores come in ascending
    ``ranks``. Passages that the group's mask leaves out are in none of its rankings. The fused score of a passage is
    the sum of ``shares[l, place]`` over the rankings l of its group; the ``k`` highest are kept, equal ones by
    ``ranks`` again. Every rounding is given here, so all backends agree in every id, place and bit. Only the reference
    holds scores of more than a few passages at a time.

    Args:
        ranks: [N] int32, distinct: which of two equal passages comes first.
        dense, sparse: at least one; their queries are the L = B_dense + B_sparse rankings, in this order.
        groups: [L] int32, 0 to G - 1: whose rankings are fused (raw query, clue and card of one question).
        shares: [L, depth] int64, 0 or more, from ``rrf_shares``; depth 1 to ``MAX_DEPTH``.
        masks: [M, N] bool, True = may be found (tenant, filter, removed passages); None where no group has one.
        mask_ids: [G] int32: the group's mask, -1 = all passages.
        k: 1 or more; may exceed N.

    Raises:
        ConfigError: a shape, dtype, stride or device outside this contract; on the CPU an index out of range too.
    """
    check_ranges(dense, sparse, groups, masks, mask_ids, len(ranks))
    scores = _scores(len(ranks), dense, sparse)
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if sparse is not None:
        first = len(scores) - sparse.num_queries
        allowed[first:] = scores[first:] > 0
    if masks is not None:
        chosen = mask_ids[groups.long()].long()
        allowed &= masks[chosen.clamp(min=0)] | (chosen < 0)[:, None]
    list_passages, list_scores = _best(ranks, scores, allowed, shares.shape[1])
    fused = torch.zeros(len(mask_ids), len(ranks), dtype=torch.int64, device=ranks.device)
    for row, group in enumerate(groups.tolist()):
        held = list_passages[row] >= 0
        fused[group].index_add_(0, list_passages[row][held].long(), shares[row][held])
    passages, best_shares = _best(ranks, fused, fused > 0, k)
    return Retrieved(passages, best_shares, list_passages, list_scores)


def _scores(num_passages: int, dense: DenseSearch | None, sparse: SparseSearch | None) -> Tensor:
    """[L, N] float32."""
    parts = []
    if dense is not None and dense.scales is not None:
        dots = dense.queries.double() @ dense.vectors.double().T  # integers below 2^53: exact in any order
        parts.append(dots.float() * dense.scales)
    elif dense is not None:
        parts.append(_fma_chain(dense.queries, dense.vectors))
    if sparse is not None:
        found = sparse.weights.new_zeros(sparse.num_queries, num_passages)
        starts, indptr, terms = sparse.starts.tolist(), sparse.indptr.tolist(), sparse.terms.tolist()
        for row in range(sparse.num_queries):
            for term in terms[starts[row] : starts[row + 1]]:
                span = slice(indptr[term], indptr[term + 1])
                found[row, sparse.passages[span].long()] += sparse.weights[span]
        parts.append(found)
    return torch.cat(parts)


def _fma_chain(queries: Tensor, vectors: Tensor) -> Tensor:
    """[B, N] float32: fused multiply-adds over h from 0 up, computed in float64 and rounded to odd before float32."""
    total = queries.new_zeros(len(queries), len(vectors))
    infinity = torch.tensor(float("inf"), dtype=torch.float64, device=queries.device)
    for h in range(queries.shape[1]):
        product = queries[:, h, None].double() * vectors[None, :, h].double()  # 24 + 24 bits: exact
        addend = total.double()
        rounded = product + addend
        virtual = rounded - product
        error = (product - (rounded - virtual)) + (addend - virtual)
        even = (rounded.view(torch.int64) & 1) == 0
        odd = torch.nextafter(rounded, torch.where(error > 0, infinity, -infinity))
        total = torch.where((error != 0) & even, odd, rounded).float()
    return total


def _best(ranks: Tensor, scores: Tensor, allowed: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """The ``depth`` highest allowed scores of each row, equal ones in ascending rank: passages int32, their scores."""
    in_rank_order = ranks.argsort()
    lowest = torch.iinfo(scores.dtype).min if scores.dtype == torch.int64 else float("-inf")
    ordered = torch.where(allowed, scores, lowest)[:, in_rank_order]
    best, places = ordered.sort(dim=1, descending=True, stable=True)
    width = min(depth, len(ranks))
    passages = torch.full((len(scores), depth), -1, dtype=torch.int32, device=ranks.device)
    kept = scores.new_zeros(len(scores), depth)
    filled = torch.arange(width, device=ranks.device) < allowed.sum(1, keepdim=True)
    passages[:, :width] = torch.where(filled, in_rank_order[places[:, :width]].int(), -1)
    kept[:, :width] = torch.where(filled, best[:, :width], 0)
    return passages, kept


retrieve_topk = Op(
    "retrieve_topk",
    _reference,
    Impl("cpp", "pss_engine.ops.cpp:retrieve_topk", ("cpu",)),
    Impl("triton", "pss_engine.ops.triton_search:retrieve_topk", ("cuda",)),
    Impl("cuda", "pss_engine.ops.cuda:retrieve_topk", ("cuda",)),
    check=check_search,
)
