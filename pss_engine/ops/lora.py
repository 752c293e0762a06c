"""Low-rank updates of a projection, a different state for each row of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops.contract import FLOATS, misfit, needs_gradient, rows_contiguous
from pss_engine.ops.dispatch import Impl, Op

FACTORS = (*FLOATS, torch.int8)
_ARGUMENTS = ("y", "x", "lora_a", "lora_b", "scaling", "ranks", "slot_ids")


def _reference(
    y: Tensor, x: Tensor, lora_a: Tensor, lora_b: Tensor, scaling: Tensor, ranks: Tensor, slot_ids: Tensor
) -> None:
    """Adds each row's low-rank update to ``y``, in place.

    ``y[t] += scaling[s] * (x[t] @ lora_a[s, :r].T) @ lora_b[s, :, :r].T`` with ``s = slot_ids[t]``, ``r = ranks[s]``,
    in float32 with one rounding to the dtype of ``y``. Rows with ``s = -1`` and slots with ``r = 0`` are left alone;
    what a slot holds beyond its rank is never read.

    On ``cpp`` and ``triton`` a row's bits depend on nothing but that row; the reference uses library GEMMs, whose
    order of summation may change with the number of rows. No gradient flows through this op.

    Args:
        y: [T, H_out] float32, bfloat16 or float16; rows contiguous, any row stride (a slice of a fused projection).
        x: [T, H_in], dtype of ``y``; rows contiguous, any row stride.
        lora_a: [S, R, H_in] float32, bfloat16 or float16; each slot contiguous, any stride between slots. On the CPU
            also int8: whole numbers, whose step is part of ``scaling``.
        lora_b: [S, H_out, R], dtype of ``lora_a``; each slot contiguous, any stride between slots.
        scaling: [S] float32.
        ranks: [S] int32, 0 to R.
        slot_ids: [T] int32, -1 to S - 1. On CUDA it is not read back: a row out of range is left alone.

    Raises:
        ConfigError: a shape, dtype, stride or device outside this contract; on the CPU a rank or slot out of range too.
    """
    if y.device.type == "cpu":
        _check_range("ranks", ranks, 0, lora_a.size(1))
        _check_range("slot_ids", slot_ids, -1, lora_a.size(0) - 1)
    ranks_by_slot = ranks.tolist()
    for slot in slot_ids.unique().tolist():
        if not 0 <= slot < len(ranks_by_slot) or ranks_by_slot[slot] == 0:
            continue
        rank = ranks_by_slot[slot]
        rows = (slot_ids == slot).nonzero().squeeze(1)
        low = scaling[slot] * (x[rows].float() @ lora_a[slot, :rank].float().T)
        y[rows] = (y[rows].float() + low @ lora_b[slot, :, :rank].float().T).to(y.dtype)


def _check_range(name: str, values: Tensor, low: int, high: int) -> None:
    outside = ((values < low) | (values > high)).nonzero()
    if outside.numel():
        index = int(outside[0])
        raise ConfigError(f"lora_bgmv: {name}[{index}] = {int(values[index])}, must be {low} to {high}")


def _check_lora_bgmv(
    y: Tensor, x: Tensor, lora_a: Tensor, lora_b: Tensor, scaling: Tensor, ranks: Tensor, slot_ids: Tensor
) -> None:
    # Runs once a projection and step: attribute reads only; the text of an error is made when there is one.
    tensors = (y, x, lora_a, lora_b, scaling, ranks, slot_ids)
    if not _shapes_fit(*tensors):
        expected = "[T, H_out], [T, H_in], [S, R, H_in], [S, H_out, R], [S], [S], [T]"
        raise misfit("lora_bgmv", "shapes", _each(tensors, lambda t: list(t.shape)), expected)
    if (
        y.dtype not in FLOATS
        or lora_a.dtype not in (FACTORS if y.device.type == "cpu" else FLOATS)
        or x.dtype != y.dtype
        or lora_b.dtype != lora_a.dtype
        or scaling.dtype != torch.float32
        or ranks.dtype != torch.int32
        or slot_ids.dtype != torch.int32
    ):
        expected = (
            "y and x, and lora_a and lora_b, alike in float32, bfloat16 or float16, the latter on the CPU in int8 too;"
            " float32; int32; int32"
        )
        raise misfit("lora_bgmv", "dtypes", _each(tensors, lambda t: t.dtype), expected)
    if not (
        rows_contiguous(y)
        and rows_contiguous(x)
        and (y.stride(0) >= y.size(1) or y.size(0) <= 1)
        and rows_contiguous(lora_a)
        and rows_contiguous(lora_b)
        and scaling.is_contiguous()
        and ranks.is_contiguous()
        and slot_ids.is_contiguous()
    ):
        expected = "contiguous rows of y and x, slots of lora_a and lora_b, vectors; rows of y apart from each other"
        raise misfit("lora_bgmv", "strides", _each(tensors, lambda t: t.stride()), expected)
    if any(t.device != y.device for t in tensors):
        raise misfit("lora_bgmv", "devices", _each(tensors, lambda t: t.device), "one device for all")
    if needs_gradient(y, x, lora_a, lora_b):
        expected = "none: no gradient flows through this op, call it under torch.no_grad()"
        raise misfit("lora_bgmv", "tensors that require grad", _each(tensors, lambda t: t.requires_grad), expected)


def _each(tensors: Sequence[Tensor], read: Callable[[Tensor], object]) -> dict[str, object]:
    return {name: read(tensor) for name, tensor in zip(_ARGUMENTS, tensors, strict=True)}


def _shapes_fit(
    y: Tensor, x: Tensor, lora_a: Tensor, lora_b: Tensor, scaling: Tensor, ranks: Tensor, slot_ids: Tensor
) -> bool:
    if y.dim() != 2 or lora_a.dim() != 3:
        return False
    (num_rows, out_features), (num_slots, max_rank, in_features) = y.shape, lora_a.shape
    return (
        x.shape == (num_rows, in_features)
        and lora_b.shape == (num_slots, out_features, max_rank)
        and scaling.shape == ranks.shape == (num_slots,)
        and slot_ids.shape == (num_rows,)
    )


lora_bgmv = Op(
    "lora_bgmv",
    _reference,
    Impl("cpp", "pss_engine.ops.cpp:lora_bgmv", devices=("cpu",)),
    Impl("triton", "pss_engine.kernels.lora_bgmv:lora_bgmv", devices=("cuda",)),
    Impl("cuda", "pss_engine.ops.cuda:lora_bgmv", devices=("cuda",)),
    check=_check_lora_bgmv,
)


class LoraSlice(NamedTuple):
    """The factors of one module inside a fused projection; as in ``lora_bgmv``, with the module's first column."""

    lora_a: Tensor
    lora_b: Tensor
    scaling: Tensor
    ranks: Tensor
    offset: int

    def of(self, y: Tensor) -> Tensor:
        """The module's columns of y [T, all columns]."""
        return y[:, self.offset : self.offset + self.lora_b.size(1)]


def each_slice(lora: Callable[..., None]) -> Callable[..., None]:
    """``lora_slices`` as one call of a backend's ``lora_bgmv`` for each slice."""

    def run(y: Tensor, x: Tensor, slices: Sequence[LoraSlice], slot_ids: Tensor) -> None:
        for part in slices:
            lora(part.of(y), x, part.lora_a, part.lora_b, part.scaling, part.ranks, slot_ids)

    return run


def _slices_reference(y: Tensor, x: Tensor, slices: Sequence[LoraSlice], slot_ids: Tensor) -> None:
    """``lora_bgmv`` for every module of a fused projection (q-k-v, gate-up): one x, columns of one y, in place.

    On ``triton`` two launches serve three slices; a row's bits are those of one call for each.

    Args:
        y: [T, all columns], x: [T, H_in], slot_ids: [T] int32, as in ``lora_bgmv``.
        slices: with columns that do not overlap and factors of one dtype.

    Raises:
        ConfigError: a slice outside the contract of ``lora_bgmv``, or beyond the columns of y.
    """
    each_slice(_reference)(y, x, slices, slot_ids)


def _check_lora_slices(y: Tensor, x: Tensor, slices: Sequence[LoraSlice], slot_ids: Tensor) -> None:
    for part in slices:
        if part.lora_a.dtype != slices[0].lora_a.dtype:
            dtypes = {f"slice {i}": s.lora_a.dtype for i, s in enumerate(slices)}
            raise misfit("lora_slices", "dtypes of factors", dtypes, "one dtype for all")
        _check_lora_bgmv(part.of(y), x, part.lora_a, part.lora_b, part.scaling, part.ranks, slot_ids)


lora_slices = Op(
    "lora_slices",
    _slices_reference,
    Impl("cpp", "pss_engine.ops.cpp:lora_slices", devices=("cpu",)),
    Impl("triton", "pss_engine.kernels.lora_bgmv:lora_slices", devices=("cuda",)),
    Impl("cuda", "pss_engine.ops.cuda:lora_slices", devices=("cuda",)),
    check=_check_lora_slices,
)
