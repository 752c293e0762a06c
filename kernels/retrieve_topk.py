"""Candidates of a search: each program scores a block of passages for one query and keeps the best of the block.

A candidate is one 64-bit key, the score in its upper half and the passage's place among all ranks, reversed, in its
lower: larger is better, and no two are equal. Scores are rounded step by step as ``ops/retrieve_topk`` says.
"""

import torch
import triton
import triton.language as tl

BLOCK = 256  # passages of one program
STEP = 128  # features of int8 vectors that one step sums


@triton.jit
def keep_best(score, allowed, places, n, num_passages, out, depth, BLOCK: tl.constexpr):
    """Sorts the keys of a block; ``depth`` of them go to out."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # a zero has one sign
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    place = tl.load(places + n, mask=n < num_passages, other=0).to(tl.int64)
    key = ordered * 4294967296 + (4294967295 - place)
    key = tl.where(allowed & (n < num_passages), key, -9223372036854775808)
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.sort(key, descending=True), mask=i < depth)


@triton.jit
def allowed_by(masks, mask_rows, row, n, num_passages):
    chosen = tl.load(mask_rows + row).to(tl.int64)
    held = tl.load(masks + chosen * num_passages + n, mask=(n < num_passages) & (chosen >= 0), other=1)
    return held != 0


@triton.jit
def dense_kernel(
    queries, vectors, scales, places, masks, mask_rows, out,
    num_passages, size, depth, num_blocks,
    BLOCK: tl.constexpr, STEP: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0)
    block = tl.program_id(1)
    n = block * BLOCK + tl.arange(0, BLOCK)
    rows = vectors + n.to(tl.int64) * size
    if INT8:
        total = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, size, STEP):
            h = start + tl.arange(0, STEP)
            q = tl.load(queries + query * size + h, mask=h < size, other=0).to(tl.int32)
            inside = (n < num_passages)[:, None] & (h < size)[None, :]
            v = tl.load(rows[:, None] + h[None, :], mask=inside, other=0).to(tl.int32)
            total += tl.sum(v * q[None, :], 1)
        score = total.to(tl.float32) * tl.load(scales + n, mask=n < num_passages, other=0.0)
    else:
        score = tl.zeros((BLOCK,), tl.float32)
        for h in range(0, size):
            v = tl.load(rows + h, mask=n < num_passages, other=0.0).to(tl.float32)
            q = tl.load(queries + query * size + h)
            score = tl.fma(v, tl.zeros((BLOCK,), tl.float32) + q, score)
    allowed = allowed_by(masks, mask_rows, query, n, num_passages)
    target = out + (query * num_blocks + block).to(tl.int64) * depth
    keep_best(score, allowed, places, n, num_passages, target, depth, BLOCK)


@triton.jit
def sparse_kernel(
    terms, starts, indptr, passages, weights, places, masks, mask_rows, out,
    num_passages, depth, num_blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0)
    block = tl.program_id(1)
    n = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.zeros((BLOCK,), tl.float32)
    for at in range(tl.load(starts + query), tl.load(starts + query + 1)):
        term = tl.load(terms + at)
        begin = tl.load(indptr + term)
        end = tl.load(indptr + term + 1)
        # where each passage of the block would stand among the term's postings
        low = tl.zeros((BLOCK,), tl.int64) + begin
        high = tl.zeros((BLOCK,), tl.int64) + end
        left = end - begin
        while left > 0:
            middle = (low + high) // 2
            before = tl.load(passages + middle, mask=low < high, other=0) < n
            high = tl.where((low < high) & ~before, middle, high)
            low = tl.where((low < high) & before, middle + 1, low)
            left = left // 2
        found = tl.load(passages + low, mask=low < end, other=-1) == n
        score += tl.load(weights + low, mask=found, other=0.0)
    allowed = allowed_by(masks, mask_rows, query, n, num_passages) & (score > 0)
    target = out + (query * num_blocks + block).to(tl.int64) * depth
    keep_best(score, allowed, places, n, num_passages, target, depth, BLOCK)


def _candidates(num_queries: int, num_passages: int, depth: int, device: torch.device) -> tuple[torch.Tensor, int]:
    num_blocks = triton.cdiv(num_passages, BLOCK)
    return torch.empty(num_queries, num_blocks, min(depth, BLOCK), dtype=torch.int64, device=device), num_blocks


def dense_candidates(
    queries: torch.Tensor,
    vectors: torch.Tensor,
    scales: torch.Tensor | None,
    places: torch.Tensor,
    masks: torch.Tensor,
    mask_rows: torch.Tensor,
    depth: int,
) -> torch.Tensor:
    """Keys of the best ``depth`` of every block, [B, blocks * depth] int64; places [N] and mask_rows [B] int32."""
    num_passages, size = vectors.shape
    out, num_blocks = _candidates(len(queries), num_passages, depth, vectors.device)
    if out.numel():
        with torch.cuda.device_of(vectors):
            dense_kernel[(len(queries), num_blocks)](
                queries, vectors, places if scales is None else scales, places, masks, mask_rows, out,
                num_passages, size, out.shape[2], num_blocks,
                BLOCK=BLOCK, STEP=STEP, INT8=scales is not None, num_warps=4,
            )  # fmt: skip
    return out.flatten(1)


def sparse_candidates(
    terms: torch.Tensor,
    starts: torch.Tensor,
    indptr: torch.Tensor,
    passages: torch.Tensor,
    weights: torch.Tensor,
    places: torch.Tensor,
    masks: torch.Tensor,
    mask_rows: torch.Tensor,
    depth: int,
) -> torch.Tensor:
    """The same for queries of terms over postings."""
    out, num_blocks = _candidates(len(starts) - 1, len(places), depth, places.device)
    if out.numel():
        with torch.cuda.device_of(places):
            sparse_kernel[(len(starts) - 1, num_blocks)](
                terms, starts, indptr, passages, weights, places, masks, mask_rows, out,
                len(places), out.shape[2], num_blocks,
                BLOCK=BLOCK, num_warps=4,
            )  # fmt: skip
    return out.flatten(1)
