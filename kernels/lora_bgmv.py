"""Low-rank updates of a projection, a different slot for each row: shrink to the rank, then expand.

No split of a sum over programs and no atomics: a row's bits do not depend on the other rows.
"""

import torch
import triton
import triton.language as tl

RANKS = 4  # of one shrink program
COLUMNS = 64  # of one expand program
MAX_STEP = 1024  # elements of a row that one step of a shrink reads


@triton.jit
def shrink_kernel(
    x, lora_a, scaling, ranks, slot_ids, low,
    x_stride, a_stride, in_features, max_rank, num_slots,
    RANKS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """low[t, j] = scaling[s] * sum_k x[t, k] lora_a[s, j, k] for j < ranks[s]."""
    t = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ids + t).to(tl.int64)
    if (slot < 0) | (slot >= num_slots):
        return
    rank = tl.load(ranks + slot)
    j = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    if tl.program_id(1) * RANKS >= rank:
        return
    k = tl.arange(0, STEP)
    rows = lora_a + slot * a_stride + j[:, None] * in_features
    total = tl.zeros((RANKS, STEP), tl.float32)
    for start in range(0, in_features, STEP):
        inside = start + k < in_features
        row = tl.load(x + t * x_stride + start + k, mask=inside, other=0.0).to(tl.float32)
        mask = (j < rank)[:, None] & inside[None, :]
        total += row[None, :] * tl.load(rows + (start + k)[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(low + t * max_rank + j, tl.load(scaling + slot) * tl.sum(total, 1), mask=j < rank)


@triton.jit
def expand_kernel(
    low, lora_b, ranks, slot_ids, y,
    y_stride, b_stride, out_features, max_rank, num_slots,
    COLUMNS: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """y[t, i] += sum_j low[t, j] lora_b[s, i, j] for j < ranks[s]."""
    t = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ids + t).to(tl.int64)
    if (slot < 0) | (slot >= num_slots):
        return
    rank = tl.load(ranks + slot)
    if rank == 0:
        return
    i = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    j = tl.arange(0, RANK)
    row = tl.load(low + t * max_rank + j, mask=j < rank, other=0.0)
    columns = lora_b + slot * b_stride + i[:, None] * max_rank + j[None, :]
    mask = (i < out_features)[:, None] & (j < rank)[None, :]
    update = tl.sum(row[None, :] * tl.load(columns, mask=mask, other=0.0).to(tl.float32), 1)
    target = y + t * y_stride + i
    before = tl.load(target, mask=i < out_features, other=0.0).to(tl.float32)
    tl.store(target, (before + update).to(y.dtype.element_ty), mask=i < out_features)


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
    (num_rows, out_features), (num_slots, max_rank, in_features) = y.shape, lora_a.shape
    if 0 in (num_rows, out_features, num_slots, max_rank, in_features):
        return
    low = torch.empty(num_rows, max_rank, dtype=torch.float32, device=y.device)
    step = min(MAX_STEP, triton.next_power_of_2(in_features))
    with torch.cuda.device_of(y):
        shrink_kernel[(num_rows, triton.cdiv(max_rank, RANKS))](
            x, lora_a, scaling, ranks, slot_ids, low,
            x.stride(0), lora_a.stride(0), in_features, max_rank, num_slots,
            RANKS=RANKS, STEP=step,
        )  # fmt: skip
        expand_kernel[(num_rows, triton.cdiv(out_features, COLUMNS))](
            low, lora_b, ranks, slot_ids, y,
            y.stride(0), lora_b.stride(0), out_features, max_rank, num_slots,
            COLUMNS=COLUMNS, RANK=triton.next_power_of_2(max_rank),
        )  # fmt: skip
