"""Quantised weights by their parts: codes, scales, mins. What the packed formats hold, and what their values are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pss_engine.errors import ConfigError


@dataclass(frozen=True)
class QuantFormat:
    """How a weight is quantised along its input features.

    Attributes:
        name: as the command line and GGUF spell it, in lower case.
        low_bits, high_bits: of a code; the first 4 or 8 bits lie apart from the others.
        group: input features that share a scale.
        groups_per_scale: over 1: the scale of a group is a float16 of so many groups times an int8 of its own.
        has_min: whether a value has a minimum added, with parts like those of the scale.
        offset: subtracted from the code; 8-bit codes are signed instead.
    """

    name: str
    low_bits: int
    high_bits: int
    group: int
    groups_per_scale: int
    has_min: bool
    offset: int

    @property
    def block(self) -> int:
        """Input features of one float16 scale."""
        return self.group * self.groups_per_scale

    @property
    def has_sub_scales(self) -> bool:
        return self.groups_per_scale > 1


Q8_0 = QuantFormat("q8_0", 8, 0, 32, 1, False, 0)
Q4_0 = QuantFormat("q4_0", 4, 0, 32, 1, False, 8)
Q4_1 = QuantFormat("q4_1", 4, 0, 32, 1, True, 0)
Q4_K = QuantFormat("q4_k", 4, 0, 32, 8, True, 0)
Q5_K = QuantFormat("q5_k", 4, 1, 32, 8, True, 0)
Q6_K = QuantFormat("q6_k", 4, 2, 16, 16, False, 32)
QUANT_FORMATS = {f.name: f for f in (Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K)}


@dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """A weight [N, K]; K is padded to the format's block with zero codes.

    Attributes:
        in_features: K, without what is over.
        codes: [N, padded K] uint8, or int8 for 8-bit codes.
        scales: [N, padded K / block] float16.
        mins: the same, or None; what is added, so that GGUF's subtracted minima are here with the other sign.
        sub_scales, sub_mins: [N, padded K / group] int8, or None.
    """

    format: QuantFormat
    in_features: int
    codes: Tensor
    scales: Tensor
    mins: Tensor | None = None
    sub_scales: Tensor | None = None
    sub_mins: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.in_features

    def dequantize(self) -> Tensor:
        """``w[n, k] = scale[n, k] * (code[n, k] - offset) + min[n, k]`` in float32, with a rounding after each step.

        Returns:
            [N, K] float32; for a tensor of a GGUF file the same bits as ``gguf.dequantize``.
        """
        values = self.codes.float().sub_(self.format.offset)
        scales = self._factors(self.scales, self.sub_scales)
        values.view(*scales.shape, -1).mul_(scales[..., None])
        if self.mins is not None:
            mins = self._factors(self.mins, self.sub_mins)
            values.view(*mins.shape, -1).add_(mins[..., None])
        return values[:, : self.in_features].contiguous()

    def rows(self, index: Tensor | slice) -> QuantizedWeight:
        """Some rows, in the order of ``index``."""
        parts = {name: part[index] for name, part in self.tensors().items()}
        return QuantizedWeight(self.format, self.in_features, **parts)

    @classmethod
    def cat(cls, weights: list[QuantizedWeight]) -> QuantizedWeight:
        """The rows of weights of one format and width, one after another."""
        first, *_ = weights
        parts = {name: torch.cat([weight.tensors()[name] for weight in weights]) for name in first.tensors()}
        return cls(first.format, first.in_features, **parts)

    def tensors(self) -> dict[str, Tensor]:
        """Its parts by name, those that it has."""
        return {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}

    @staticmethod
    def _factors(wide: Tensor, sub: Tensor | None) -> Tensor:
        """[N, blocks], or where blocks have groups [N, groups], float32."""
        factors = wide.float()
        if sub is None:
            return factors
        return (factors[..., None] * sub.float().view(*factors.shape, -1)).flatten(1)


def quantize_int8(weight: Tensor) -> QuantizedWeight:
    """The nearest int8 codes in groups of 32 input features, as GGUF's Q8_0 has them.

    ``scale = max |w| / 127`` of a group, rounded to float16; ``code = round(w / scale)`` with the scale before that
    rounding, halves away from zero.

    Args:
        weight: [N, K], any float dtype.

    Raises:
        ConfigError: a value is not finite, or over what a float16 scale reaches.
    """
    num_rows, in_features = weight.shape
    padded = -(-in_features // Q8_0.group) * Q8_0.group
    groups = torch.nn.functional.pad(weight.float(), (0, padded - in_features)).view(num_rows, -1, Q8_0.group)
    scales = groups.abs().amax(-1) / 127
    if not scales.isfinite().all() or scales.half().isinf().any():
        raise ConfigError("int8 weights: a weight is not finite, or its group's scale is over float16's 65504")
    inverse = torch.where(scales > 0, 1 / scales, 0)
    scaled = groups * inverse[..., None]
    codes = (scaled.abs() + 0.5).floor() * scaled.sign()
    return QuantizedWeight(Q8_0, in_features, codes.to(torch.int8).view(num_rows, padded), scales.half())
