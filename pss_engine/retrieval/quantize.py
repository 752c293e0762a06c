"""Vectors as an index holds them."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.errors import ConfigError

VECTOR_TYPES = {"int8": torch.int8, "float16": torch.float16, "float32": torch.float32}


def store_as(vectors: Tensor, kind: str) -> tuple[Tensor, Tensor | None]:
    """``vectors`` [n, H] float32 in the type of an index, and the scales [n] of int8.

    ``int8[n] = round(127 vectors[n] / max |vectors[n]|)``, so that ``int8[n] * scales[n]`` is the vector again.

    Raises:
        ConfigError: an unknown type, or vectors with NaN or infinity.
    """
    if kind not in VECTOR_TYPES:
        raise ConfigError(f"vector type {kind!r} is unknown; choices: {', '.join(VECTOR_TYPES)}")
    check_finite(vectors)
    if kind != "int8":
        stored = vectors.to(VECTOR_TYPES[kind])
        check_finite(stored)
        return stored.contiguous(), None
    largest = vectors.abs().amax(1) if len(vectors) else vectors.new_zeros(0)
    scales = torch.where(largest > 0, largest / 127, torch.ones_like(largest))
    return (vectors / scales[:, None]).round().clamp(-127, 127).to(torch.int8), scales


def check_finite(vectors: Tensor) -> None:
    """Raises ConfigError naming the first vector with NaN or infinity."""
    bad = (~torch.isfinite(vectors.float())).any(1).nonzero()
    if bad.numel():
        raise ConfigError(f"vector {int(bad[0])} of {len(vectors)} holds NaN or infinity; vectors must be finite")
