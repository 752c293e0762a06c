"""Many small matrix products in one call: what training asks for, where a call of its own for each costs more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pss_engine.ops.contract import misfit, seen
from pss_engine.ops.dispatch import training_op


class Product(NamedTuple):
    """``out = alpha left right``, added to what out holds where ``add`` says so.

    out [M, N], columns side by side; left [M, K] and right [K, N] in any strides; all float32.
    """

    out: Tensor
    left: Tensor
    right: Tensor
    alpha: float = 1.0
    add: bool = False


class Products(list[Product]):
    """Products that are computed together, in any order: none may read or write what another writes."""

    @property
    def device(self) -> torch.device:
        return self[0].out.device if self else torch.device("cpu")


def _reference(products: Sequence[Product]) -> None:
    """Each :class:`Product`, written into its ``out``.

    On ``cpp`` every sum is one chain of multiply-adds over k from 0 up: its bits depend on its own row of left and
    column of right alone.

    Raises:
        ConfigError: a shape, dtype or stride outside this contract.
    """
    for out, left, right, alpha, add in products:
        product = (left @ right).mul_(alpha)
        if add:
            out += product
        else:
            out.copy_(product)


def _check(products: Sequence[Product]) -> None:
    for out, left, right, _, _ in products:
        if not (
            out.dim() == left.dim() == right.dim() == 2
            and left.shape[1] == right.shape[0]
            and out.shape == (left.shape[0], right.shape[1])
            and out.dtype == left.dtype == right.dtype == torch.float32
            and (out.shape[1] < 2 or out.stride(1) == 1)
        ):
            found = seen(out=out, left=left, right=right)
            raise misfit("products", "tensors", found, "float32 [M, N] with columns side by side, [M, K], [K, N]")


products = training_op("products", _reference, _check)
