"""Causal attention over a paged cache: one kernel for decoding and for chunks.

The grid follows from shapes alone and nothing is read on the host, so a launch can be captured. One program sums the
whole context of its queries, in tiles of keys that begin at multiples of their size: no split of a sum, no atomics, and
a query's bits depend neither on the other rows nor on the chunk that it came in.
"""

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
MIN_ROWS = 16  # of a tensor core tile: pairs of a query and a head
TILE_BYTES = 16384  # of the keys, or the values, that one step of a program reads


@triton.jit(do_not_specialize=["table_stride", "num_rows", "window"])
def attention_kernel(
    q, k_cache, v_cache, block_tables, query_starts, context_lens, out,
    scale_log2, q_stride, table_stride, num_kv_heads, num_rows, window,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """out[t, n] = softmax2(scale_log2 * q[t, n] . k) v over the keys that t sees; one kv head and QUERIES tokens."""
    QUERIES: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    # The tiles of row b begin at query_starts[b] // QUERIES + b: room for all of them, whatever the lengths.
    low = 0
    high = num_rows
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // QUERIES + middle <= tile:
            low = middle + 1
        else:
            high = middle
    b = low - 1
    row_start = tl.load(query_starts + b)
    num_queries = tl.load(query_starts + b + 1) - row_start
    first = (tile - row_start // QUERIES - b) * QUERIES
    if first >= num_queries:
        return
    head = tl.program_id(1)
    context = tl.load(context_lens + b)
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
    begin = tl.where(window > 0, tl.maximum(context - num_queries + first - window + 1, 0) // KEYS * KEYS, 0)
    end = context - num_queries + tl.minimum(first + QUERIES, num_queries)

    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, FEATURES), tl.float32)
    table = block_tables + b.to(tl.int64) * table_stride
    for start in range(begin, end, KEYS):
        j = start + tl.arange(0, KEYS)
        # a key that no query of this tile sees may lie in no block of the row
        needed = (j < end) & ((window <= 0) | (j > context - num_queries + first - window))
        block = tl.load(table + j // BLOCK, mask=needed, other=0).to(tl.int64)
        entry = ((block * BLOCK + j % BLOCK) * num_kv_heads + head) * HEAD_DIM
        place = entry[:, None] + d[None, :]
        loaded = needed[:, None] & (d < HEAD_DIM)[None, :]
        keys = tl.load(k_cache + place, mask=loaded, other=0.0).to(tl.float32).to(q.dtype.element_ty)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale_log2
        seen = needed[None, :] & (j[None, :] <= position[:, None]) & (j[None, :] > oldest[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        peak = tl.maximum(largest, tl.max(scores, 1))
        finite = tl.where(peak == float("-inf"), 0.0, peak)  # nothing seen so far
        weights = tl.exp2(scores - finite[:, None])
        kept = tl.exp2(largest - finite)
        values = tl.load(v_cache + place, mask=loaded, other=0.0).to(tl.float32).to(q.dtype.element_ty)
        total = total * kept + tl.sum(weights, 1)
        part = tl.dot(weights.to(q.dtype.element_ty), values, input_precision="ieee")
        mixed = mixed * kept[:, None] + part
        largest = peak
    divisor = tl.where(used, total, 1.0)
    target = out + (token * num_kv_heads * GROUP * HEAD_DIM + column)[:, None] + d[None, :]
    tl.store(target, (mixed / divisor[:, None]).to(out.dtype.element_ty), mask=inside)


def tiles(group: int, head_dim: int, item_bytes: int) -> dict[str, int]:
    """Sizes of the kernel's tiles: they follow from the model alone, so that it is compiled once."""
    features = max(16, triton.next_power_of_2(head_dim))
    keys = max(16, min(64, TILE_BYTES // (features * item_bytes)))
    return {"ROWS": max(MIN_ROWS, triton.next_power_of_2(group)), "KEYS": keys, "FEATURES": features}


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
    num_kv_heads = k_cache.shape[2]
    group = num_heads // num_kv_heads
    sizes = tiles(group, head_dim, q.element_size())
    num_tiles = num_tokens // (sizes["ROWS"] // group) + num_rows
    with torch.cuda.device_of(q):
        attention_kernel[(num_tiles, num_kv_heads)](
            q, k_cache, v_cache, block_tables, query_starts, context_lens, out,
            scale * LOG2_E, q.stride(0), block_tables.shape[1], num_kv_heads, num_rows, window or 0,
            GROUP=group, HEAD_DIM=head_dim, BLOCK=k_cache.shape[1], **sizes, num_warps=4, num_stages=2,
        )  # fmt: skip
    return out
