"""The checks a state must pass before it is written to disk or used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from pss_engine.errors import CapacityError, StateFormatError
from pss_engine.state.shape import StateShape
from pss_engine.state.tensor_names import tensor_name

if TYPE_CHECKING:
    from pss_engine.state.session_state import SessionState


def verify(
    state: SessionState,
    *,
    shape: StateShape | None = None,
    max_rank: int | None = None,
    max_bytes: int | None = None,
    dtype: torch.dtype | None = None,
    model_fingerprint: str | None = None,
    tokenizer_fingerprint: str | None = None,
) -> None:
    """Check topology, rank, dtype, size, origin and that every number is finite. An argument of None skips its check.

    Args:
        shape: the model it must fit.
        max_rank: largest rank allowed.
        max_bytes: budget for all factors together.
        dtype: the only dtype allowed.
        model_fingerprint, tokenizer_fingerprint: of the model in use; a state of unknown origin is not refused by them.

    Raises:
        StateFormatError: names the tensor or field, the value and the limit.
        CapacityError: the factors are larger than ``max_bytes``.
    """
    where = f"state {state.session_id}"
    _check_origin(where, "model", state.meta.model_fingerprint, model_fingerprint)
    _check_origin(where, "tokenizer", state.meta.tokenizer_fingerprint, tokenizer_fingerprint)
    if max_bytes is not None and state.num_bytes > max_bytes:
        raise CapacityError("state budget", state.num_bytes, max_bytes, "bytes")
    check_topology(state, shape, max_rank)
    for key, pair in state.factors.items():
        for side, tensor in (("A", pair.a), ("B", pair.b)):
            if dtype is not None and tensor.dtype != dtype:
                raise StateFormatError(
                    f"{where}: tensor {tensor_name(*key, side)} is {tensor.dtype}, {dtype} is needed"
                )
            if not _is_finite(tensor):
                num_bad = int((~torch.isfinite(tensor)).sum())
                raise StateFormatError(
                    f"{where}: tensor {tensor_name(*key, side)} has {num_bad} numbers that are not finite, 0 allowed"
                )


def check_topology(state: SessionState, shape: StateShape | None, max_rank: int | None) -> None:
    """Check layers, modules, shapes and ranks only; reads no tensor. StateFormatError names what does not fit."""
    for key, pair in state.factors.items():
        where = f"state {state.session_id}: layer {key[0]} {key[1]}"
        if shape is not None:
            shape.check_factors(where, key, pair.a.shape, pair.b.shape)
        if max_rank is not None and pair.rank > max_rank:
            raise StateFormatError(f"{where}: rank {pair.rank} is over max_rank {max_rank}")


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether all numbers are. Where one is NaN so are the least and the greatest, which take a tenth of the time."""
    return not tensor.numel() or all(math.isfinite(bound) for bound in tensor.aminmax())


def _check_origin(where: str, what: str, recorded: str | None, wanted: str | None) -> None:
    if recorded is not None and wanted is not None and recorded != wanted:
        raise StateFormatError(
            f"{where}: written with {what} {recorded[:16]}, the {what} in use is {wanted[:16]}; write it again"
        )
