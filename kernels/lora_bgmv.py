"""Low-rank updates of a projection, a different slot for each row: shrink to the rank, then expand.

One kernel serves decoding (a slot of its own for each row) and prefill (long runs of one slot). Rows are taken in
aligned groups of ROWS; the first row of a group that has a slot computes for all rows of the group that have it. The
input is cut at multiples of CHUNK, each part summed by a program of its own and the parts added in order; there are no
atomics. So a row's bits depend neither on the other rows nor on their number.
"""

import torch
import triton
import triton.language as tl

ROWS = 16  # of a tensor core tile
CHUNK = 512  # features that one shrink program sums
COLUMNS = 64  # outputs of one expand program
MAX_SLICES = 3  # of a fused projection: q, k and v

Slice = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]


@triton.jit
def own_rows(slot_ids, num_rows, ROWS: tl.constexpr):
    """The slot of this program's row; the rows of its group that have it too; whether it is the first of them."""
    t = tl.program_id(0)
    slot = tl.load(slot_ids + t)
    rows = t // ROWS * ROWS + tl.arange(0, ROWS)
    mine = tl.load(slot_ids + rows, mask=rows < num_rows, other=-1) == slot
    mine = mine & (rows < num_rows)
    first = tl.min(tl.where(mine, rows, num_rows), 0)
    return slot, rows.to(tl.int64), mine, first == t


@triton.jit
def shrink_kernel(
    x, a0, a1, a2, ranks0, ranks1, ranks2, slot_ids, low,
    x_stride, a_stride0, a_stride1, a_stride2, in_features, num_rows, num_slots, num_chunks,
    ROWS: tl.constexpr, RANK: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """low[slice, chunk, t, j] = sum over the chunk's k of x[t, k] lora_a[slot, j, k] for j < ranks[slot]."""
    slot, rows, mine, leads = own_rows(slot_ids, num_rows, ROWS)
    if (not leads) | (slot < 0) | (slot >= num_slots):
        return
    part = tl.program_id(2)
    zero = tl.full(
        (), 0, tl.int64
    )  # what is added to it has one type, also where Triton takes an argument for a constant
    lora_a, ranks, a_stride = a0, ranks0, zero + a_stride0
    if part == 1:
        lora_a, ranks, a_stride = a1, ranks1, zero + a_stride1
    if part == 2:
        lora_a, ranks, a_stride = a2, ranks2, zero + a_stride2
    rank = tl.load(ranks + slot)
    if rank == 0:
        return
    chunk = tl.program_id(1)
    j = tl.arange(0, RANK)
    total = tl.zeros((ROWS, RANK), tl.float32)
    for start in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, in_features), STEP):
        k = start + tl.arange(0, STEP)
        inside = k < in_features
        row = tl.load(x + rows[:, None] * x_stride + k[None, :], mask=mine[:, None] & inside[None, :], other=0.0)
        place = lora_a + slot.to(tl.int64) * a_stride + j[None, :] * in_features + k[:, None]
        factor = tl.load(place, mask=(j < rank)[None, :] & inside[:, None], other=0.0)
        if HALF:
            total = tl.dot(row, factor, total)
        else:
            total = tl.dot(row.to(tl.float32), factor.to(tl.float32), total, input_precision="tf32x3")
    place = ((zero + part * num_chunks + chunk) * num_rows + rows)[:, None] * RANK + j[None, :]
    tl.store(low + place, total, mask=mine[:, None] & (j < rank)[None, :])


@triton.jit
def expand_kernel(
    low, b0, b1, b2, scaling0, scaling1, scaling2, ranks0, ranks1, ranks2, slot_ids, y,
    y_stride, b_stride0, b_stride1, b_stride2, offset0, offset1, offset2, out0, out1, out2,
    max_rank0, max_rank1, max_rank2, num_rows, num_slots, num_chunks,
    ROWS: tl.constexpr, RANK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """y[t, offset + i] += scaling[slot] * sum_j low[t, j] lora_b[slot, i, j] for j < ranks[slot]."""
    slot, rows, mine, leads = own_rows(slot_ids, num_rows, ROWS)
    if (not leads) | (slot < 0) | (slot >= num_slots):
        return
    zero = tl.full((), 0, tl.int64)
    tile, part = zero + tl.program_id(1), zero
    lora_b, scaling, ranks, b_stride = b0, scaling0, ranks0, zero + b_stride0
    offset, out_features, max_rank = zero + offset0, zero + out0, zero + max_rank0
    first1 = tl.cdiv(zero + out0, COLUMNS)
    first2 = first1 + tl.cdiv(zero + out1, COLUMNS)
    if (tile >= first1) & (tile < first2):
        part = zero + 1
        lora_b, scaling, ranks, b_stride = b1, scaling1, ranks1, zero + b_stride1
        offset, out_features, max_rank = zero + offset1, zero + out1, zero + max_rank1
        tile = tile - first1
    elif tile >= first2:
        part = zero + 2
        lora_b, scaling, ranks, b_stride = b2, scaling2, ranks2, zero + b_stride2
        offset, out_features, max_rank = zero + offset2, zero + out2, zero + max_rank2
        tile = tile - first2
    rank = tl.load(ranks + slot)
    if rank == 0:
        return
    j = tl.arange(0, RANK)
    total = tl.zeros((ROWS, RANK), tl.float32)
    for chunk in range(0, num_chunks):
        place = ((zero + part * num_chunks + chunk) * num_rows + rows)[:, None] * RANK + j[None, :]
        total += tl.load(low + place, mask=mine[:, None] & (j < rank)[None, :], other=0.0)
    total *= tl.load(scaling + slot)
    i = tile * COLUMNS + tl.arange(0, COLUMNS)
    inside = i < out_features
    place = lora_b + slot.to(tl.int64) * b_stride + i[None, :] * max_rank + j[:, None]
    factor = tl.load(place, mask=inside[None, :] & (j < rank)[:, None], other=0.0)
    update = tl.dot(total, factor.to(tl.float32), input_precision="tf32x3")
    target = y + rows[:, None] * y_stride + (offset + i)[None, :]
    written = mine[:, None] & inside[None, :]
    before = tl.load(target, mask=written, other=0.0).to(tl.float32)
    tl.store(target, (before + update).to(y.dtype.element_ty), mask=written)


def tiles(max_rank: int, half: bool) -> dict[str, int | bool]:
    """Sizes of the shrink kernel's tiles, from the factors alone."""
    rank = max(16, triton.next_power_of_2(max_rank))
    return {"ROWS": ROWS, "RANK": rank, "CHUNK": CHUNK, "STEP": 128 if half else 32, "HALF": half}


def lora_slices(y: torch.Tensor, x: torch.Tensor, slices: list[Slice], slot_ids: torch.Tensor) -> None:
    """Each slice's update to its columns of y, all from the same x, in two launches.

    Slices are (lora_a, lora_b, scaling, ranks, first column of y), up to three, with factors of one dtype.
    """
    live = [s for s in slices if 0 not in s[0].shape and 0 not in s[1].shape]
    if not live or 0 in y.shape:
        return
    for begin in range(0, len(live), MAX_SLICES):
        _launch(y, x, live[begin : begin + MAX_SLICES], slot_ids)


def _launch(y: torch.Tensor, x: torch.Tensor, slices: list[Slice], slot_ids: torch.Tensor) -> None:
    count = len(slices)
    lora_a, lora_b, scaling, ranks, offsets = zip(*(slices[min(i, count - 1)] for i in range(MAX_SLICES)), strict=True)
    num_rows, in_features = x.shape
    half = x.dtype == lora_a[0].dtype != torch.float32
    sizes = tiles(max(a.shape[1] for a in lora_a), half)
    num_chunks = triton.cdiv(in_features, CHUNK)
    low = torch.empty(count, num_chunks, num_rows, sizes["RANK"], dtype=torch.float32, device=y.device)
    out = [b.shape[1] if i < count else 0 for i, b in enumerate(lora_b)]
    num_slots = lora_a[0].shape[0]
    with torch.cuda.device_of(y):
        shrink_kernel[(num_rows, num_chunks, count)](
            x, *lora_a, *ranks, slot_ids, low,
            x.stride(0), *(a.stride(0) for a in lora_a), in_features, num_rows, num_slots, num_chunks,
            **sizes, num_warps=4, num_stages=2,
        )  # fmt: skip
        expand_kernel[(num_rows, sum(triton.cdiv(n, COLUMNS) for n in out))](
            low, *lora_b, *scaling, *ranks, slot_ids, y,
            y.stride(0), *(b.stride(0) for b in lora_b), *offsets, *out, *(b.shape[2] for b in lora_b),
            num_rows, num_slots, num_chunks,
            ROWS=ROWS, RANK=sizes["RANK"], COLUMNS=COLUMNS, num_warps=4, num_stages=1,
        )  # fmt: skip


def lora_bgmv(
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a: torch.Tensor,
    lora_b: torch.Tensor,
    scaling: torch.Tensor,
    ranks: torch.Tensor,
    slot_ids: torch.Tensor,
) -> None:
    """y[t] += scaling[s] * (x[t] @ lora_a[s, :r].T) @ lora_b[s, :, :r].T with s = slot_ids[t], r = ranks[s].

    A row whose slot is not in 0 to S - 1 is left alone.
    """
    lora_slices(y, x, [(lora_a, lora_b, scaling, ranks, 0)], slot_ids)
