"""Weights in the order in which the CPU kernels read them, in the element type or quantisation that they came in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops.quantized import QUANT_FORMATS, QuantFormat, QuantizedWeight

PANEL = 16
LINE = 64  # bytes that a panel of codes is padded to
FLOAT_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FORMATS = (*FLOAT_FORMATS, *QUANT_FORMATS)
"""Names of the formats, in the order of ``pss::WeightFormat``."""


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A weight [N, K] in panels of 16 outputs; the kernels read it from the first element to the last.

    Attributes:
        format: one of ``FORMATS``.
        panels: floats [ceil(N / 16), K, 16]: ``panels[n // 16, k, n % 16]`` is weight[n, k], what is over is zero.
            Quantised: uint8 [ceil(N / 16), panel bytes], in each panel the regions of ``regions()`` one after another.
        out_features, in_features: N and K.
    """

    format: str
    panels: Tensor
    out_features: int
    in_features: int

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"weight format {self.format!r} is unknown; choices: {', '.join(FORMATS)}")
        num_panels = -(-self.out_features // PANEL)
        if quant := QUANT_FORMATS.get(self.format):
            shape, dtype = (num_panels, panel_bytes(quant, self.in_features)), torch.uint8
        else:
            shape, dtype = (num_panels, self.in_features, PANEL), FLOAT_FORMATS[self.format]  # type: ignore[assignment]
        if self.panels.shape != shape or self.panels.dtype != dtype or not self.panels.is_contiguous():
            raise ConfigError(
                f"packed weight [{self.out_features}, {self.in_features}] in {self.format}: panels are"
                f" {list(self.panels.shape)} {self.panels.dtype}, must be contiguous {list(shape)} {dtype}"
            )

    @property
    def is_quantized(self) -> bool:
        return self.format in QUANT_FORMATS

    @property
    def num_bytes(self) -> int:
        return self.panels.numel() * self.panels.element_size()

    @staticmethod
    def bytes_of(weight: Tensor | QuantizedWeight) -> int:
        """Bytes of the panels that a weight will have, padding included."""
        num_rows, in_features = weight.shape
        if isinstance(weight, QuantizedWeight):
            return -(-num_rows // PANEL) * panel_bytes(weight.format, in_features)
        return -(-num_rows // PANEL) * PANEL * in_features * weight.element_size()

    @classmethod
    def pack(cls, weight: Tensor | QuantizedWeight, memory: Tensor | None = None) -> PackedWeight:
        """A packed copy of a weight [N, K]: float32, bfloat16, float16 or quantised.

        Args:
            memory: where it is to lie, ``bytes_of(weight)`` uint8; None: in memory of its own.
        """
        if memory is None:
            memory = torch.empty(cls.bytes_of(weight), dtype=torch.uint8)
        num_rows, in_features = weight.shape
        if isinstance(weight, QuantizedWeight):
            return cls(weight.format.name, _pack_quantized(weight, memory), num_rows, in_features)
        panels = memory.view(weight.dtype).view(-1, in_features, PANEL)
        whole = num_rows // PANEL
        panels[:whole] = weight[: whole * PANEL].view(whole, PANEL, in_features).transpose(1, 2)
        if rest := num_rows - whole * PANEL:
            panels[whole, :, :rest] = weight[whole * PANEL :].T
            panels[whole, :, rest:] = 0
        return cls(_name(weight.dtype), panels, num_rows, in_features)

    def parts(self) -> QuantizedWeight:
        """The parts of a quantised weight, copies."""
        format, columns = QUANT_FORMATS[self.format], self.in_features
        found = {name: self.panels[:, at : at + size] for name, (at, size) in regions(format, columns).items()}

        def rows(values: Tensor) -> Tensor:
            """[panels, X, 16] to [N, X]."""
            return values.transpose(1, 2).flatten(0, 1)[: self.out_features].contiguous()

        def numbers(name: str, dtype: torch.dtype) -> Tensor | None:
            if name not in found:
                return None
            return rows(found[name].contiguous().view(dtype).view(len(self.panels), -1, PANEL))

        codes = _unpack_bits(found["low"], format.low_bits)
        if format.high_bits:
            codes |= _unpack_bits(found["high"], format.high_bits) << format.low_bits
        scales = numbers("scales", torch.float16)
        assert scales is not None
        return QuantizedWeight(
            format,
            columns,
            rows(codes).view(torch.int8) if format.low_bits == 8 else rows(codes),
            scales,
            numbers("mins", torch.float16),
            numbers("sub_scales", torch.int8),
            numbers("sub_mins", torch.int8),
        )

    def unpack(self) -> Tensor:
        """The weight [N, K], a copy: in its dtype, or float32 for a quantised one."""
        if self.format in QUANT_FORMATS:
            return self.parts().dequantize()
        return self.panels.transpose(1, 2).reshape(-1, self.in_features)[: self.out_features]


def panel_bytes(format: QuantFormat, in_features: int) -> int:
    """Bytes of one quantised panel."""
    at, size = list(regions(format, in_features).values())[-1]
    return -(-(at + size) // LINE) * LINE


def regions(format: QuantFormat, in_features: int) -> dict[str, tuple[int, int]]:
    """(first byte, bytes) of each region of a panel.

    ``low`` and ``high`` hold the bits of the codes in words of four bytes [..][16], each with as many k's of its output
    as fit: byte b has k = 4 s + b in its bits from ``bits * s`` on, so that four codes at a time are four bytes. Then
    float16 ``scales`` and ``mins`` [block][16], and int8 ``sub_scales`` and ``sub_mins`` [group][16].
    """
    padded = -(-in_features // format.block) * format.block
    sizes = {
        "low": padded * PANEL * format.low_bits // 8,
        "high": padded * PANEL * format.high_bits // 8,
        "scales": padded // format.block * PANEL * 2,
        "mins": padded // format.block * PANEL * 2 * format.has_min,
        "sub_scales": padded // format.group * PANEL * format.has_sub_scales,
        "sub_mins": padded // format.group * PANEL * (format.has_sub_scales and format.has_min),
    }
    found, at = {}, 0
    for name, size in sizes.items():
        if size:
            found[name] = (at, size)
        at += size
    return found


def _pack_quantized(weight: QuantizedWeight, memory: Tensor) -> Tensor:
    format, num_rows = weight.format, weight.shape[0]
    num_panels = -(-num_rows // PANEL)
    panels = memory.view(num_panels, -1)
    panels.zero_()

    def columns(rows: Tensor) -> Tensor:
        """[N, X] to [panels, X, 16], what is over zero."""
        padded = torch.nn.functional.pad(rows, (0, 0, 0, num_panels * PANEL - num_rows))
        return padded.view(num_panels, PANEL, -1).transpose(1, 2)

    codes = columns(weight.codes.view(torch.uint8))
    parts: dict[str, Callable[[], Tensor]] = {
        "low": lambda: _pack_bits(codes & (2**format.low_bits - 1), format.low_bits),
        "high": lambda: _pack_bits(codes >> format.low_bits, format.high_bits),
        **{
            name: (lambda part=part: columns(part).contiguous())  # type: ignore[misc]
            for name, part in weight.tensors().items()
            if name != "codes"
        },
    }
    for name, (at, size) in regions(format, weight.in_features).items():
        panels[:, at : at + size] = parts[name]().flatten(1).view(torch.uint8)
    return panels


def _pack_bits(codes: Tensor, bits: int) -> Tensor:
    """[panels, K, 16] uint8 to the bytes of words [panels, K * bits / 32, 16, 4]."""
    split = codes.unflatten(1, (-1, 8 // bits, 4))
    words = split[:, :, 0].clone()
    for s in range(1, 8 // bits):
        words |= split[:, :, s] << (bits * s)
    return words.transpose(2, 3).contiguous()


def _unpack_bits(region: Tensor, bits: int) -> Tensor:
    """The inverse, from the bytes of a region: [panels, padded K, 16] uint8."""
    words = region.reshape(len(region), -1, 1, PANEL, 4).transpose(3, 4)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None, None]
    return (words >> shifts & (2**bits - 1)).flatten(1, 3)


def _name(dtype: torch.dtype) -> str:
    return next(name for name, kind in FLOAT_FORMATS.items() if kind == dtype)
