"""Dense layers over weights that are packed for the CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.errors import ConfigError
from pss_engine.ops.contract import FLOATS, misfit, needs_gradient, rows_contiguous
from pss_engine.ops.dispatch import Impl, Op

PANEL = 16


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A weight [N, K] in panels of 16 outputs; the kernels read it from the first element to the last.

    Attributes:
        panels: [ceil(N / 16), K, 16] contiguous; ``panels[n // 16, k, n % 16]`` is weight[n, k], what is over is zero.
        out_features: N.
    """

    panels: Tensor
    out_features: int

    @property
    def in_features(self) -> int:
        return self.panels.shape[1]

    @staticmethod
    def num_elements(out_features: int, in_features: int) -> int:
        """Elements of the panels of a weight, padding included."""
        return -(-out_features // PANEL) * in_features * PANEL

    @classmethod
    def pack(cls, weight: Tensor, memory: Tensor | None = None) -> PackedWeight:
        """A packed copy of weight [N, K] float32, bfloat16 or float16.

        Args:
            memory: where it is to lie, ``num_elements`` of weight's dtype; None: in memory of its own.
        """
        out_features, in_features = weight.shape
        if memory is None:
            memory = weight.new_empty(cls.num_elements(out_features, in_features))
        panels = memory.view(-1, in_features, PANEL)
        whole = out_features // PANEL
        panels[:whole] = weight[: whole * PANEL].view(whole, PANEL, in_features).transpose(1, 2)
        if rest := out_features - whole * PANEL:
            panels[whole, :, :rest] = weight[whole * PANEL :].T
            panels[whole, :, rest:] = 0
        return cls(panels, out_features)

    def unpack(self) -> Tensor:
        """The weight [N, K], a copy."""
        return self.panels.transpose(1, 2).reshape(-1, self.in_features)[: self.out_features]

    def rows(self, index: Tensor) -> Tensor:
        """``weight[index]``; index [T] int64; returns [T, K]."""
        return self.panels[index // PANEL, :, index % PANEL]


def _reference(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """``y[t, n] = sum_k x[t, k] weight[n, k] + bias[n]``, in float32.

    On ``cpp`` each output is one chain of multiply-adds over k from 0 up, the bias added last: its bits depend on its
    row of x and its row of the weight alone, not on the other rows or their number. The reference is torch's
    ``F.linear`` over the unpacked weight, whose order of summation may change with the number of rows. No gradient
    flows through this op.

    Args:
        x: [T, K] float32; rows contiguous, any row stride.
        weight: packed [N, K] in float32, bfloat16 or float16.
        bias: [N] float32.

    Returns:
        y [T, N] float32, contiguous.

    Raises:
        ConfigError: a shape, dtype, stride or device outside this contract.
    """
    return F.linear(x, weight.unpack().float(), bias)


def _check(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> None:
    # Runs once a projection and step: attribute reads only; the text of an error is made when there is one.
    panels, out_features = weight.panels, weight.out_features
    if (
        x.dim() != 2
        or panels.dim() != 3
        or panels.shape != (-(-out_features // PANEL), x.shape[1], PANEL)
        or (bias is not None and bias.shape != (out_features,))
    ):
        found = {"x": list(x.shape), "panels": list(panels.shape), "of": out_features}
        found["bias"] = None if bias is None else list(bias.shape)
        raise misfit("linear", "shapes", found, "[T, K], [ceil(N / 16), K, 16] of N, [N] or None")
    if x.dtype != torch.float32 or panels.dtype not in FLOATS or (bias is not None and bias.dtype != torch.float32):
        dtypes = {"x": x.dtype, "panels": panels.dtype, "bias": None if bias is None else bias.dtype}
        raise misfit("linear", "dtypes", dtypes, "float32; float32, bfloat16 or float16; float32 or None")
    if not (rows_contiguous(x) and panels.is_contiguous() and (bias is None or bias.is_contiguous())):
        strides = {"x": x.stride(), "panels": panels.stride(), "bias": None if bias is None else bias.stride()}
        raise misfit("linear", "strides", strides, "contiguous rows of x, contiguous panels and bias")
    if panels.device != x.device or (bias is not None and bias.device != x.device):
        devices = {"x": x.device, "panels": panels.device, "bias": None if bias is None else bias.device}
        raise misfit("linear", "devices", devices, "one device for all")
    if needs_gradient(x, panels):
        raise ConfigError("linear: no gradient flows through packed weights; multiply by the transposed one")


linear = Op("linear", _reference, Impl("cpp", "pss_engine.ops.cpp:linear", devices=("cpu",)), check=_check)
