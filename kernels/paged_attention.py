"""Causal attention over a paged cache: for decoding, for drafted rows and for chunks.

The grid follows from shapes alone and nothing is read on the host, so a launch can be captured. The keys of a context
are taken in parts that begin at multiples of PART. Where there are few queries each part has a program of its own and a
second kernel merges the parts in order; where there are many one program goes through all parts and merges them by the
same formula. No atomics: a query's bits depend neither on the other rows nor on the chunk that it came in.
"""

import torch
import triton
import triton.language as tl

from .float8 import decoded

LOG2_E = 1.4426950408889634
MIN_ROWS = 16  # of a tensor core tile: pairs of a query and a head
TILE_BYTES = 16384  # of the keys, or the values, that one step of a program reads
PART = 256  # keys
ENOUGH_PROGRAMS = 1024  # that fill any GPU without cutting contexts
MAX_WORKSPACE_BYTES = 64 << 20


@triton.jit
def row_of(query_starts, num_rows, at, QUERIES: tl.constexpr):
    """The row that tile ``at`` belongs to; the tiles of row b begin at query_starts[b] // QUERIES + b."""
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // QUERIES + middle <= at:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def merged(peak, total, mixed, other_peak, other_total, other_mixed):
    """Two sets of keys as one. The multiply-adds are spelled out, so that every kernel rounds alike."""
    highest = tl.maximum(peak, other_peak)
    finite = tl.where(highest == float("-inf"), 0.0, highest)  # nothing seen so far
    kept = tl.exp2(peak - finite)
    added = tl.exp2(other_peak - finite)
    total = tl.fma(total, kept, other_total * added)
    mixed = tl.fma(mixed, tl.expand_dims(kept, -1), other_mixed * tl.expand_dims(added, -1))
    return highest, total, mixed


@triton.jit(do_not_specialize=["table_stride", "num_rows", "num_tokens", "window"])
def attention_kernel(
    q, k_cache, v_cache, block_tables, query_starts, context_lens, out, peaks, totals,
    scale_log2, q_stride, table_stride, num_kv_heads, num_rows, num_tokens, window,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr, SPLIT: tl.constexpr,
    FP8: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """out[t, n] = softmax2(scale_log2 * q[t, n] . k) v over the keys that t sees; one kv head and QUERIES tokens.

    SPLIT: of one part of the keys, not divided by its total, with peaks and totals beside it.
    """
    QUERIES: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    b = row_of(query_starts, num_rows, tile, QUERIES)
    row_start = tl.load(query_starts + b)
    num_queries = tl.load(query_starts + b + 1) - row_start
    first = (tile - row_start // QUERIES - b) * QUERIES
    if first >= num_queries:
        return
    head = tl.program_id(1)
    context = tl.load(context_lens + b)
    # a key that no query of this tile sees may lie in no block of the row
    begin = tl.where(window > 0, tl.maximum(context - num_queries + first - window + 1, 0), 0)
    end = context - num_queries + tl.minimum(first + QUERIES, num_queries)
    first_part = begin // PART
    end_part = tl.cdiv(end, PART)
    if SPLIT:
        if (tl.program_id(2) < first_part) | (tl.program_id(2) >= end_part):
            return
        first_part = tl.program_id(2)
        end_part = first_part + 1
    m = tl.arange(0, ROWS)
    query = first + m // GROUP
    used = (m // GROUP < QUERIES) & (query < num_queries)
    position = context - num_queries + query
    d = tl.arange(0, FEATURES)
    token = (row_start + query).to(tl.int64)
    column = (head * GROUP + m % GROUP) * HEAD_DIM
    inside = used[:, None] & (d < HEAD_DIM)[None, :]
    queries = tl.load(q + (token * q_stride + column)[:, None] + d[None, :], mask=inside, other=0.0)
    # padding rows see nothing that a row in use does not
    oldest = tl.where(window > 0, position - window, -1)

    all_peak = tl.full((ROWS,), float("-inf"), tl.float32)
    all_total = tl.zeros((ROWS,), tl.float32)
    all_mixed = tl.zeros((ROWS, FEATURES), tl.float32)
    table = block_tables + b.to(tl.int64) * table_stride
    for part in range(first_part, end_part):
        largest = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        mixed = tl.zeros((ROWS, FEATURES), tl.float32)
        for start in range(tl.maximum(begin // KEYS * KEYS, part * PART), tl.minimum(end, part * PART + PART), KEYS):
            j = start + tl.arange(0, KEYS)
            needed = (j < end) & (j >= begin)
            block = tl.load(table + j // BLOCK, mask=needed, other=0).to(tl.int64)
            entry = ((block * BLOCK + j % BLOCK) * num_kv_heads + head) * HEAD_DIM
            place = entry[:, None] + d[None, :]
            loaded = needed[:, None] & (d < HEAD_DIM)[None, :]
            if FP8:
                keys = decoded(tl.load(k_cache + place, mask=loaded, other=0)).to(q.dtype.element_ty)
                values = decoded(tl.load(v_cache + place, mask=loaded, other=0)).to(q.dtype.element_ty)
            else:
                keys = tl.load(k_cache + place, mask=loaded, other=0.0).to(tl.float32).to(q.dtype.element_ty)
                values = tl.load(v_cache + place, mask=loaded, other=0.0).to(tl.float32).to(q.dtype.element_ty)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale_log2
            seen = needed[None, :] & (j[None, :] <= position[:, None]) & (j[None, :] > oldest[:, None])
            scores = tl.where(seen, scores, float("-inf"))
            peak = tl.maximum(largest, tl.max(scores, 1))
            finite = tl.where(peak == float("-inf"), 0.0, peak)  # nothing seen so far
            weights = tl.exp2(scores - finite[:, None])
            kept = tl.exp2(largest - finite)
            total = tl.fma(total, kept, tl.sum(weights, 1))
            fresh = tl.dot(weights.to(q.dtype.element_ty), values, input_precision="ieee")
            mixed = tl.fma(mixed, kept[:, None], fresh)
            largest = peak
        all_peak, all_total, all_mixed = merged(all_peak, all_total, all_mixed, largest, total, mixed)
    if SPLIT:
        line = (tl.program_id(2).to(tl.int64) * num_tokens + token) * num_kv_heads * GROUP + head * GROUP + m % GROUP
        tl.store(peaks + line, all_peak, mask=used)
        tl.store(totals + line, all_total, mask=used)
        tl.store(out + (line * HEAD_DIM)[:, None] + d[None, :], all_mixed, mask=inside)
    else:
        divisor = tl.where(used, all_total, 1.0)
        target = out + (token * num_kv_heads * GROUP * HEAD_DIM + column)[:, None] + d[None, :]
        tl.store(target, (all_mixed / divisor[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "num_tokens", "window"])
def merge_kernel(
    mixed, peaks, totals, query_starts, context_lens, out,
    num_heads, num_rows, num_tokens, window,
    HEAD_DIM: tl.constexpr, PART: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """out[t, n] = the parts of the context that t sees, merged in order."""
    t = tl.program_id(0)
    head = tl.program_id(1)
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_starts + middle + 1) <= t:
            low = middle + 1
        else:
            high = middle
    if low == num_rows:
        return
    position = tl.load(context_lens + low) - tl.load(query_starts + low + 1) + t
    first = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0) // PART
    d = tl.arange(0, FEATURES)
    # vectors of one: a merge is the same code as in the kernel above
    peak = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    sums = tl.zeros((1, FEATURES), tl.float32)
    one = tl.arange(0, 1).to(tl.int64)
    for part in range(first, position // PART + 1):
        line = ((one + part) * num_tokens + t) * num_heads + head
        place = mixed + (line * HEAD_DIM)[:, None] + d[None, :]
        more = tl.load(place, mask=(d < HEAD_DIM)[None, :], other=0.0)
        peak, total, sums = merged(peak, total, sums, tl.load(peaks + line), tl.load(totals + line), more)
    target = out + ((t.to(tl.int64) * num_heads + head + one) * HEAD_DIM)[:, None] + d[None, :]
    tl.store(target, (sums / total[:, None]).to(out.dtype.element_ty), mask=(d < HEAD_DIM)[None, :])


def tiles(group: int, head_dim: int, item_bytes: int) -> dict[str, int]:
    """Sizes of the kernel's tiles: they follow from the model alone, so that it is compiled once."""
    features = max(16, triton.next_power_of_2(head_dim))
    keys = max(16, min(64, TILE_BYTES // (features * item_bytes)))
    return {"ROWS": max(MIN_ROWS, triton.next_power_of_2(group)), "KEYS": keys, "FEATURES": features}


def num_parts(num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, max_context: int) -> int:
    """Programs that share a context, from shapes alone; 1 where there are enough without, or partial sums too many."""
    parts = triton.cdiv(max_context, PART)
    fits = parts * num_tokens * num_heads * (head_dim + 2) * 4 <= MAX_WORKSPACE_BYTES
    return parts if fits and num_tokens * num_kv_heads < ENOUGH_PROGRAMS else 1


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Attention of each row's new tokens over its context. q in a half type: weights are rounded to it before v."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    (num_tokens, num_heads, head_dim), num_rows = q.shape, context_lens.shape[0]
    if 0 in (*q.shape, num_rows):
        return out
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = num_heads // num_kv_heads
    sizes = tiles(group, head_dim, q.element_size())
    num_tiles = num_tokens // (sizes["ROWS"] // group) + num_rows
    parts = num_parts(num_tokens, num_heads, num_kv_heads, head_dim, block_tables.shape[1] * block_size)
    fp8 = k_cache.dtype == torch.float8_e4m3fn
    if fp8:
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    mixed, peaks, totals = out, out, out
    if parts > 1:
        mixed = torch.empty(parts, *q.shape, dtype=torch.float32, device=q.device)
        peaks, totals = torch.empty(2, parts, num_tokens, num_heads, dtype=torch.float32, device=q.device)
    with torch.cuda.device_of(q):
        attention_kernel[(num_tiles, num_kv_heads, parts)](
            q, k_cache, v_cache, block_tables, query_starts, context_lens, mixed, peaks, totals,
            scale * LOG2_E, q.stride(0), block_tables.shape[1], num_kv_heads, num_rows, num_tokens, window or 0,
            GROUP=group, HEAD_DIM=head_dim, BLOCK=block_size, PART=PART, SPLIT=parts > 1, FP8=fp8,
            **sizes, num_warps=4, num_stages=2,
        )  # fmt: skip
        if parts > 1:
            merge_kernel[(num_tokens, num_heads)](
                mixed, peaks, totals, query_starts, context_lens, out,
                num_heads, num_rows, num_tokens, window or 0,
                HEAD_DIM=head_dim, PART=PART, FEATURES=sizes["FEATURES"], num_warps=1,
            )  # fmt: skip
    return out
