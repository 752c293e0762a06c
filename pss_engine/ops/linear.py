"""Dense layers over weights that are packed for the CPU kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.errors import ConfigError
from pss_engine.ops.contract import misfit, needs_gradient, rows_contiguous
from pss_engine.ops.dispatch import Impl, Op
from pss_engine.ops.packed_weight import PackedWeight
from pss_engine.ops.quantized import QUANT_FORMATS


def quantize_rows(x: Tensor) -> Tensor:
    """x [T, K] float32 rounded to what int8 holds in groups of 32 features: ``scale = max |x| / 127`` of the group.

    Returns:
        ``scale * round(x * 127 / max |x|)`` [T, K], ties to even.
    """
    groups = F.pad(x, (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
    highest = groups.abs().amax(-1, keepdim=True)
    codes = (groups * torch.where(highest > 0, 127 / highest, 0)).round()
    return (codes * (highest / 127)).flatten(1)[:, : x.shape[1]]


def _linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None, int8_rows: bool = False) -> Tensor:
    """``y[t, n] = sum_k x[t, k] weight[n, k] + bias[n]``, in float32.

    On ``cpp`` each output is one chain of multiply-adds over k from 0 up, the bias added last: its bits depend on its
    row of x and its row of the weight alone, not on the other rows or their number, and a quantised weight gives the
    bits of its dequantised copy. The reference is torch's ``F.linear`` over the unpacked weight, whose order of
    summation may change with the number of rows. No gradient flows through this op.

    Args:
        x: [T, K] float32; rows contiguous, any row stride.
        weight: packed [N, K], in any format.
        bias: [N] float32.
        int8_rows: take x in int8 as well, see ``quantize_rows``; for quantised weights only. Integer dot products are
            exact, so that a row's bits still depend on nothing beside it.

    Returns:
        y [T, N] float32, contiguous.

    Raises:
        ConfigError: a shape, dtype, stride or device outside this contract.
    """
    return F.linear(quantize_rows(x) if int8_rows else x, weight.unpack().float(), bias)


def _check_linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None, int8_rows: bool = False) -> None:
    # Runs once a projection and step: attribute reads only; the text of an error is made when there is one.
    panels = weight.panels
    if x.dim() != 2 or x.shape[1] != weight.in_features or (bias is not None and bias.shape != (weight.out_features,)):
        found: dict[str, object] = {"x": list(x.shape), "weight": [weight.out_features, weight.in_features]}
        found["bias"] = None if bias is None else list(bias.shape)
        raise misfit("linear", "shapes", found, "[T, K], [N, K], [N] or None")
    if x.dtype != torch.float32 or (bias is not None and bias.dtype != torch.float32):
        dtypes = {"x": x.dtype, "bias": None if bias is None else bias.dtype}
        raise misfit("linear", "dtypes", dtypes, "float32; float32 or None")
    if not (rows_contiguous(x) and (bias is None or bias.is_contiguous())):
        strides = {"x": x.stride(), "bias": None if bias is None else bias.stride()}
        raise misfit("linear", "strides", strides, "contiguous rows of x, contiguous bias")
    if panels.device != x.device or (bias is not None and bias.device != x.device):
        devices = {"x": x.device, "panels": panels.device, "bias": None if bias is None else bias.device}
        raise misfit("linear", "devices", devices, "one device for all")
    if int8_rows and weight.format not in QUANT_FORMATS:
        raise ConfigError(f"linear: rows in int8 need a quantised weight, this one is {weight.format}")
    if needs_gradient(x, panels):
        raise ConfigError("linear: no gradient flows through packed weights; multiply by the transposed one")


def _gather_rows(ids: Tensor, weight: PackedWeight) -> Tensor:
    """``weight[ids]``: rows of a packed weight, as an embedding that is tied to the head is read.

    Args:
        ids: [T] int64, contiguous.
        weight: packed [N, K], in any format.

    Returns:
        [T, K] float32; a weight has the same bits here as in ``linear``.

    Raises:
        ConfigError: an id out of range, or ids outside this contract.
    """
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < weight.out_features:
        raise ConfigError(
            f"gather_rows: ids {int(ids.min())} to {int(ids.max())}, must be 0 to {weight.out_features - 1}"
        )
    return weight.unpack()[ids].float()


def _check_gather_rows(ids: Tensor, weight: PackedWeight) -> None:
    if ids.dim() != 1 or ids.dtype != torch.int64 or not ids.is_contiguous() or ids.device != weight.panels.device:
        found = {"ids": f"{list(ids.shape)} {ids.dtype} {ids.stride()} {ids.device}"}
        raise misfit("gather_rows", "tensors", found, f"contiguous [T] int64 on {weight.panels.device}")


linear = Op("linear", _linear, Impl("cpp", "pss_engine.ops.cpp:linear", devices=("cpu",)), check=_check_linear)
gather_rows = Op(
    "gather_rows",
    _gather_rows,
    Impl("cpp", "pss_engine.ops.cpp:gather_rows", devices=("cpu",)),
    check=_check_gather_rows,
)
