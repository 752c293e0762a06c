"""What the checks of the ops have in common: layouts that the kernels can address, and the text of a refusal."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pss_engine.errors import ConfigError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
CACHES = (*FLOATS, torch.float8_e4m3fn)


def rows_contiguous(t: Tensor) -> bool:
    """Whether everything after the first dimension lies as in a contiguous tensor, whatever the stride between rows."""
    if t.is_contiguous():
        return True
    expected = 1
    for size, stride in zip(reversed(t.shape[1:]), reversed(t.stride()[1:]), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def seen(**tensors: Tensor | None) -> dict[str, object]:
    """What a refusal tells of tensors: shape, dtype, strides and device."""
    return {
        name: None if t is None else f"{list(t.shape)} {t.dtype} {t.stride()} {t.device}" for name, t in tensors.items()
    }


def misfit(op: str, what: str, found: Mapping[str, object], expected: str) -> ConfigError:
    """``op: what do not fit: name value, ...; expected ...``."""
    named = ", ".join(f"{name} {value}" for name, value in found.items())
    return ConfigError(f"{op}: {what} do not fit: {named}; expected {expected}")
