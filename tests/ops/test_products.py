"""products: what the formula says in any strides, each of its own rows and columns alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops import Product, Products, products
from tests.ops.isas import each_isa, needs_cpp, running, with_threads

SHAPES = ((1, 1, 1), (3, 5, 7), (8, 64, 16), (9, 33, 17), (65, 70, 200), (133, 96, 32), (32, 68, 577))


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def strided(rows: int, columns: int, transposed: bool) -> Tensor:
    """A matrix inside a larger one, in either order."""
    return randn(columns, rows + 3)[:, :rows].T if transposed else randn(rows, columns + 5)[:, :columns]


@pytest.mark.parametrize("backend", products.backends("cpu"))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_any_shape_in_any_strides(backend: str, shape: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    rows, depth, columns = shape
    left, right = strided(rows, depth, turned[0]), strided(depth, columns, turned[1])
    out = randn(rows, columns + 4)[:, :columns]
    expected = out.double() + 0.5 * (left.double() @ right.double())
    fresh = torch.full((rows, columns), torch.nan)
    products(Products([Product(out, left, right, 0.5, True), Product(fresh, left, right)]), backend=backend)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(fresh.double(), left.double() @ right.double(), rtol=0, atol=1e-4)


@needs_cpp
@each_isa
def test_every_instruction_set_computes_the_same(isa: str) -> None:
    left, right, out = randn(21, 70), randn(70, 45), torch.empty(21, 45)
    with running(isa):
        products(Products([Product(out, left, right)]))
    torch.testing.assert_close(out.double(), left.double() @ right.double(), rtol=0, atol=1e-4)


@needs_cpp
def test_bits_depend_neither_on_the_other_rows_nor_on_the_threads() -> None:
    left, right = randn(133, 96), randn(96, 210)

    def whole() -> Tensor:
        out, part = torch.empty(133, 210), torch.empty(7, 50)
        products(Products([Product(out, left, right), Product(part, left[40:47], right[:, 100:150])]))
        assert torch.equal(out[40:47, 100:150], part)
        return out

    assert torch.equal(with_threads(2, whole), with_threads(1, whole))


def test_nothing_to_do_is_nothing_done() -> None:
    products(Products())


@pytest.mark.parametrize(
    ("out", "left", "right"),
    [
        (torch.empty(2, 3), torch.empty(2, 4), torch.empty(5, 3)),
        (torch.empty(2, 2), torch.empty(2, 4), torch.empty(4, 3)),
        (torch.empty(3, 2).T, torch.empty(2, 4), torch.empty(4, 3)),
        (torch.empty(2, 3), torch.empty(2, 4).double(), torch.empty(4, 3)),
        (torch.empty(1, 2, 3), torch.empty(1, 2, 4), torch.empty(1, 4, 3)),
    ],
)
def test_what_does_not_fit_is_refused(out: Tensor, left: Tensor, right: Tensor) -> None:
    with pytest.raises(ConfigError, match="products: tensors do not fit"):
        products(Products([Product(out, left, right)]))
