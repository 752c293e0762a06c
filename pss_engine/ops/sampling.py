"""From logits to tokens on the device: the largest, or drawn with noise that depends on seed, step and token alone."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.ops.contract import FLOATS, misfit, rows_contiguous
from pss_engine.ops.dispatch import Impl, Op

_LOW_32 = 0xFFFFFFFF


def _argmax(logits: Tensor) -> Tensor:
    """The first of the largest logits of each row.

    Args:
        logits: [T, V] float32, bfloat16 or float16, V at least 1; rows contiguous, any row stride; no NaN.

    Returns:
        [T] int64.

    Raises:
        ConfigError: a shape, dtype or stride outside this contract.
    """
    return logits.argmax(dim=-1)


def _sample_tokens(logits: Tensor, temperatures: Tensor, seeds: Tensor, steps: Tensor) -> Tensor:
    """Draws from ``softmax(logits[t] / temperatures[t])``; a temperature of 0 takes the first of the largest.

    The Gumbel trick: ``argmax_i logits[t, i] / temperatures[t] - log(-log(u))`` with ``u`` in (0, 1) from a hash of
    ``(seeds[t], steps[t], i)``. A row's token depends neither on the other rows nor on the order of computation; two
    backends may differ where two tokens tie to the last bits of the logarithm.

    Args:
        logits: as in ``argmax``.
        temperatures: [T] float32, 0 or more.
        seeds, steps: [T] int64; their low 32 bits count.

    Returns:
        [T] int64.

    Raises:
        ConfigError: a shape, dtype, stride or device outside this contract.
    """
    tokens = torch.arange(logits.shape[1], device=logits.device)
    keys = _mixed((seeds & _LOW_32) ^ _mixed(steps & _LOW_32))
    uniform = ((_mixed((keys[:, None] + tokens) & _LOW_32) >> 8).float() + 0.5) * 2.0**-24
    noise = -torch.log(-torch.log(uniform))
    drawn = logits.float() / temperatures.clamp(min=1e-30)[:, None] + noise
    return torch.where(temperatures[:, None] > 0, drawn, logits.float()).argmax(dim=-1)


def _mixed(x: Tensor) -> Tensor:
    """A bijection of 32 bits in which every bit of the input moves half of the output (lowbias32)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW_32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _LOW_32
    return x ^ (x >> 16)


def _check_argmax(logits: Tensor) -> None:
    if not (logits.dim() == 2 and logits.shape[1] > 0 and logits.dtype in FLOATS and rows_contiguous(logits)):
        found = {"logits": f"{list(logits.shape)} {logits.dtype} {logits.stride()}"}
        raise misfit("argmax", "tensors", found, "rows [T, V], V at least 1, in float32, bfloat16 or float16")


def _check_sample_tokens(logits: Tensor, temperatures: Tensor, seeds: Tensor, steps: Tensor) -> None:
    _check_argmax(logits)
    vectors = {"temperatures": temperatures, "seeds": seeds, "steps": steps}
    if not (
        all(v.shape == logits.shape[:1] and v.is_contiguous() and v.device == logits.device for v in vectors.values())
        and temperatures.dtype == torch.float32
        and seeds.dtype == steps.dtype == torch.int64
    ):
        found = {name: f"{list(v.shape)} {v.dtype} {v.device}" for name, v in vectors.items()}
        raise misfit("sample_tokens", "tensors", found, f"[{len(logits)}] float32, int64 and int64 on {logits.device}")


argmax = Op(
    "argmax",
    _argmax,
    Impl("cpp", "pss_engine.ops.cpp:argmax", ("cpu",)),
    Impl("triton", "pss_engine.kernels.sample_tokens:argmax", ("cuda",)),
    check=_check_argmax,
)
sample_tokens = Op(
    "sample_tokens",
    _sample_tokens,
    Impl("triton", "pss_engine.kernels.sample_tokens:sample_tokens", ("cuda",)),
    check=_check_sample_tokens,
)
