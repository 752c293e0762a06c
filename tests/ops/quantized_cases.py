"""Random quantised weights: every code, scales of both signs where the format has them."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.ops.quantized import QUANT_FORMATS, QuantFormat, QuantizedWeight

FORMATS = list(QUANT_FORMATS.values())


def random_quantized(format: QuantFormat, num_rows: int, in_features: int, seed: int = 0) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(seed)
    padded = -(-in_features // format.block) * format.block
    bits = format.low_bits + format.high_bits

    def integers(low: int, high: int, per: int, dtype: torch.dtype = torch.int8) -> Tensor:
        return torch.randint(low, high, (num_rows, padded // per), generator=generator, dtype=dtype)

    def halves(scale: float) -> Tensor:
        return (torch.randn(num_rows, padded // format.block, generator=generator) * scale).half()

    codes = integers(-127, 128, 1) if bits == 8 else integers(0, 2**bits, 1, torch.uint8)
    codes[:, in_features:] = 0
    sub = format.has_sub_scales
    return QuantizedWeight(
        format,
        in_features,
        codes,
        halves(0.02 / 2**bits / (32 if sub else 1)),
        halves(0.01 / (32 if sub else 1)) if format.has_min else None,
        integers(0 if format.has_min else -63, 64, format.group) if sub else None,
        integers(0, 64, format.group) if sub and format.has_min else None,
    )
