"""Where the weights of linear layers lie: packed for the CPU kernels in the format that they came in, or plain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.models.memory import WeightMemory
from pss_engine.ops.linear import linear
from pss_engine.ops.packed_weight import FLOAT_FORMATS, PackedWeight
from pss_engine.ops.quantized import QuantizedWeight, quantize_int8

WEIGHTS = ("auto", *FLOAT_FORMATS, "int8")
"""How weights are held on the CPU: ``auto`` as in the file, ``int8`` in groups of 32 (GGUF's Q8_0)."""

Stored = Tensor | QuantizedWeight


def why_not_packed(dtype: torch.dtype, device: torch.device) -> str:
    """Why weights are held as plain tensors; empty where they are packed for the CPU kernels."""
    if device.type != "cpu":
        return f"made for the CPU, the device is {device}"
    if dtype != torch.float32:
        return f"made for float32 activations, these are {str(dtype).removeprefix('torch.')}"
    return linear.why("cpu")["cpp"]


class WeightPacker:
    """Packs the weights of a model one after another, without holding any of them twice.

    They lie in a :class:`WeightMemory`. Weights that the CPU kernels do not take become plain ones of ``dtype``: on
    other devices, without the extension, and where activations are narrow.

    Raises:
        ConfigError: ``weights`` is unknown, or names a format that needs the CPU kernels where they do not run.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, weights: str = "auto") -> None:
        if weights not in WEIGHTS:
            raise ConfigError(f"weights {weights!r} are unknown; choices: {', '.join(WEIGHTS)}")
        self._dtype, self._device, self._weights = dtype, device, weights
        reason = why_not_packed(dtype, device)
        self.packs = not reason
        if reason and weights not in ("auto", str(dtype).removeprefix("torch.")):
            raise ConfigError(
                f"weights {weights!r} are packed for the compiled CPU kernels; here they are not: {reason}"
            )
        self._memory = WeightMemory()

    def __call__(self, stored: Sequence[Stored]) -> Tensor | tuple[PackedWeight, ...]:
        """The rows of several tensors [N_i, K] one after another, a packed weight for each run of one format."""
        if not self.packs:
            plain = [_plain(weight).to(self._device, self._dtype) for weight in stored]
            return plain[0] if len(plain) == 1 else torch.cat(plain)
        wanted = [self._wanted(weight) for weight in stored]
        return tuple(self._pack(_cat(list(group))) for _, group in groupby(wanted, _format))

    def _wanted(self, weight: Stored) -> Stored:
        if self._weights == "auto":
            return weight
        if self._weights == "int8":
            return weight if _format(weight) == "q8_0" else quantize_int8(_plain(weight))
        return _plain(weight).to(FLOAT_FORMATS[self._weights])

    def _pack(self, weight: Stored) -> PackedWeight:
        return PackedWeight.pack(weight, self._memory.take(PackedWeight.bytes_of(weight)))


def _plain(weight: Stored) -> Tensor:
    return weight.dequantize() if isinstance(weight, QuantizedWeight) else weight


def _format(weight: Stored) -> str:
    return weight.format.name if isinstance(weight, QuantizedWeight) else str(weight.dtype)


def _cat(weights: list[Stored]) -> Stored:
    quantized = [weight for weight in weights if isinstance(weight, QuantizedWeight)]
    return QuantizedWeight.cat(quantized) if quantized else torch.cat([_plain(weight) for weight in weights])
