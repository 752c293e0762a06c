"""Quantised tensors of a GGUF file by their parts; no value is turned into a float."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops.quantized import QUANT_FORMATS, QuantFormat, QuantizedWeight

if TYPE_CHECKING:
    from gguf import ReaderTensor

FLOATS = ("F32", "F16", "BF16")


def read_tensor(stored: ReaderTensor) -> Tensor | QuantizedWeight:
    """A tensor of a GGUF file as it is stored: floats in their dtype, or the parts of a quantised one.

    Raises:
        ConfigError: a quantisation that is not supported, by name.
    """
    kind, shape = stored.tensor_type.name, [int(size) for size in reversed(stored.shape)]
    if kind == "BF16":
        return torch.from_numpy(stored.data.copy()).view(torch.bfloat16).view(shape)
    if kind in FLOATS:
        return torch.from_numpy(stored.data.copy()).view(shape)
    format = QUANT_FORMATS.get(kind.lower())
    if format is None or len(shape) != 2:
        choices = ", ".join([*FLOATS, *(name.upper() for name in QUANT_FORMATS)])
        raise ConfigError(f"GGUF tensor {stored.name!r} is {kind} {shape}; choices: {choices}, quantised ones [N, K]")
    num_rows, in_features = shape
    blocks = torch.from_numpy(stored.data.copy()).view(num_rows, in_features // _SIZES[format.name], -1)
    return _READERS[format.name](format, in_features, blocks)


def _legacy(format: QuantFormat, in_features: int, blocks: Tensor) -> QuantizedWeight:
    """Q8_0, Q4_0, Q4_1: a block of 32 is scale, minimum if there is one, codes; two nibbles a byte, 16 k's apart."""
    num_factors = 2 if format.has_min else 1
    factors, codes = blocks[..., : 2 * num_factors], blocks[..., 2 * num_factors :]
    nibbles = format.low_bits == 4
    codes = torch.cat([codes & 15, codes >> 4], dim=-1) if nibbles else codes.contiguous().view(torch.int8)
    scales, *mins = _halves(factors)
    return QuantizedWeight(format, in_features, codes.flatten(1), scales, mins[0] if mins else None)


def _k_quant(format: QuantFormat, in_features: int, blocks: Tensor) -> QuantizedWeight:
    """Q4_K, Q5_K: d, dmin, eight 6-bit scales and minima in 12 bytes, high bits for Q5_K, nibbles of 64 k's a time."""
    scales, mins = _halves(blocks[..., :4])
    sub_scales, sub_mins = _six_bits(blocks[..., 4:16])
    nibbles = blocks[..., -128:].unflatten(-1, (4, 1, 32)) >> torch.tensor([0, 4], dtype=torch.uint8)[:, None] & 15
    codes = nibbles.flatten(-3)
    if format.high_bits:
        shifts = torch.arange(8, dtype=torch.uint8)[:, None]
        codes |= (blocks[..., 16:48].unsqueeze(-2) >> shifts & 1).flatten(-2) << 4
    return QuantizedWeight(
        format, in_features, codes.flatten(1), scales, -mins, sub_scales.flatten(1), sub_mins.flatten(1)
    )


def _q6_k(format: QuantFormat, in_features: int, blocks: Tensor) -> QuantizedWeight:
    """Q6_K: nibbles of 128 k's a time, two more bits of each, sixteen int8 scales, d."""
    low, high = blocks[..., :128].unflatten(-1, (2, 1, 64)), blocks[..., 128:192].unflatten(-1, (2, 1, 32))
    low = (low >> torch.tensor([0, 4], dtype=torch.uint8)[:, None] & 15).flatten(-3)
    high = (high >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None] & 3).flatten(-3)
    (scales,) = _halves(blocks[..., 208:210])
    sub_scales = blocks[..., 192:208].contiguous().view(torch.int8)
    return QuantizedWeight(format, in_features, (low | high << 4).flatten(1), scales, sub_scales=sub_scales.flatten(1))


def _halves(factors: Tensor) -> list[Tensor]:
    """[N, blocks, 2 F] bytes to F tensors [N, blocks] float16."""
    return [part.contiguous() for part in factors.contiguous().view(torch.float16).unbind(-1)]


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima of 6 bits from 12 bytes; int8."""
    d, m, rest = packed.unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat([d & 63, rest & 15 | d >> 2 & 48], dim=-1)
    mins = torch.cat([m & 63, rest >> 4 | m >> 2 & 48], dim=-1)
    return scales.view(torch.int8), mins.view(torch.int8)


_SIZES = {"q8_0": 32, "q4_0": 32, "q4_1": 32, "q4_k": 256, "q5_k": 256, "q6_k": 256}
_READERS: dict[str, Callable[[QuantFormat, int, Tensor], QuantizedWeight]] = {
    **dict.fromkeys(("q8_0", "q4_0", "q4_1"), _legacy),
    **dict.fromkeys(("q4_k", "q5_k"), _k_quant),
    "q6_k": _q6_k,
}
