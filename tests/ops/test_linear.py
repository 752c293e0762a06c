"""linear over packed weights: what the formula says, and every row and column alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops import PackedWeight, gather_rows, linear
from tests.ops.isas import ISAS, each_isa, needs_cpp, running, with_threads

BACKENDS = linear.backends("cpu")
NUM_ROWS = (1, 2, 3, 7, 8, 9, 64, 133)
# in and out features; the last two are long enough to be cut into parts
SHAPES = ((1, 1), (3, 15), (64, 16), (65, 17), (100, 70), (577, 111), (1601, 96), (2304, 33))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def case(num_rows: int, in_features: int, out_features: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight, bias; outputs are about 1."""
    weight = randn(out_features, in_features) / in_features**0.5
    return randn(num_rows, in_features), weight, randn(out_features)


def assert_right(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_any_number_of_rows(backend: str, num_rows: int) -> None:
    x, weight, bias = case(num_rows, 100, 70)
    y = linear(x, PackedWeight.pack(weight), bias, backend=backend)
    assert_right(y, x, weight, bias)


@needs_cpp
@each_isa
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_shape_on_every_instruction_set(isa: str, shape: tuple[int, int]) -> None:
    for num_rows in (1, 2, 5, 19):
        x, weight, bias = case(num_rows, *shape)
        with running(isa):
            assert_right(linear(x, PackedWeight.pack(weight), bias), x, weight, bias)
            assert_right(linear(x, PackedWeight.pack(weight)), x, weight, None)


@needs_cpp
@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_narrow_weights_are_computed_in_float32(isa: str, dtype: torch.dtype) -> None:
    x, weight, bias = case(9, 100, 70)
    weight = weight.to(dtype)
    for backend in BACKENDS:
        with running(isa):
            assert_right(linear(x, PackedWeight.pack(weight), bias, backend=backend), x, weight, bias)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_may_lie_apart_and_there_may_be_none(backend: str) -> None:
    x, weight, bias = case(9, 100, 70)
    wide = torch.full((9, 150), torch.nan)
    wide[:, 25:125] = x
    packed = PackedWeight.pack(weight)
    assert_right(linear(wide[:, 25:125], packed, bias, backend=backend), x, weight, bias)
    assert linear(x[:0], packed, bias, backend=backend).shape == (0, 70)


@needs_cpp
@each_isa
@pytest.mark.parametrize("shape", [(65, 17), (577, 111), (1601, 96)], ids=str)
def test_a_row_does_not_depend_on_the_other_rows_or_their_number(isa: str, shape: tuple[int, int]) -> None:
    x, weight, bias = case(133, *shape)
    packed = PackedWeight.pack(weight)
    with running(isa):
        together = linear(x, packed, bias)
        for num_rows in range(1, 20):
            for start in (0, 133 - num_rows):
                some = slice(start, start + num_rows)
                assert torch.equal(linear(x[some], packed, bias), together[some])
        x[1:] = torch.inf
        assert torch.equal(linear(x, packed, bias)[0], together[0])


@needs_cpp
@each_isa
def test_a_column_does_not_depend_on_the_other_columns(isa: str) -> None:
    x, weight, bias = case(9, 577, 111)
    with running(isa):
        whole = linear(x, PackedWeight.pack(weight), bias)
        for some in (slice(0, 16), slice(5, 40), slice(110, 111)):
            assert torch.equal(linear(x, PackedWeight.pack(weight[some]), bias[some]), whole[:, some])


@needs_cpp
@pytest.mark.parametrize("num_rows", [1, 8, 133])
def test_the_number_of_threads_changes_no_bit(num_rows: int) -> None:
    x, weight, bias = case(num_rows, 577, 1111)
    packed = PackedWeight.pack(weight)
    one, *others = (with_threads(count, lambda: linear(x, packed, bias)) for count in (1, 2, 3, 8))
    assert all(torch.equal(one, other) for other in others)


@needs_cpp
def test_instruction_sets_with_fused_multiply_add_agree_to_the_bit() -> None:
    x, weight, bias = case(19, 1601, 96)
    found = []
    for isa in ISAS:
        if isa != "scalar":
            with running(isa):
                found.append(linear(x, PackedWeight.pack(weight), bias))
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("out_features", [1, 15, 16, 17, 48])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packing_loses_nothing_and_pads_with_zeros(out_features: int, dtype: torch.dtype) -> None:
    weight = randn(out_features, 7).to(dtype)
    packed = PackedWeight.pack(weight)
    assert (packed.out_features, packed.in_features) == (out_features, 7)
    assert torch.equal(packed.unpack(), weight)
    assert packed.panels.sum().item() == pytest.approx(weight.sum().item(), abs=0.1)
    last = out_features - 1
    assert torch.equal(packed.panels[last // 16, :, last % 16], weight[last])
    index = torch.tensor([last, 0, 0, out_features // 2])
    for backend in gather_rows.backends("cpu"):
        assert torch.equal(gather_rows(index, packed, backend=backend), weight[index].float())


@pytest.mark.parametrize("backend", gather_rows.backends("cpu"))
@pytest.mark.parametrize("index", [-1, 48])
def test_rows_out_of_range_are_refused(backend: str, index: int) -> None:
    with pytest.raises(ConfigError, match="must be 0 to 47"):
        gather_rows(torch.tensor([3, index]), PackedWeight.pack(randn(48, 7)), backend=backend)


PANELS = {
    "too many panels": ("float32", torch.zeros(6, 100, 16), "must be contiguous .5, 100, 16. torch.float32"),
    "another dtype": ("bfloat16", torch.zeros(5, 100, 16), "must be contiguous .5, 100, 16. torch.bfloat16"),
    "a cut quantised body": (
        "q8_0",
        torch.zeros(5, 1000, dtype=torch.uint8),
        "must be contiguous .5, 2176. torch.uint8",
    ),
    "an unknown format": ("q3_k", torch.zeros(5, 1000, dtype=torch.uint8), "'q3_k' is unknown; choices: float32"),
}


@pytest.mark.parametrize("case", PANELS)
def test_panels_that_are_not_of_their_format_are_refused(case: str) -> None:
    format, panels, message = PANELS[case]
    with pytest.raises(ConfigError, match=message):
        PackedWeight(format, panels, 70, 100)


def _call(**changes: Any) -> None:
    arguments = {"x": randn(7, 100), "weight": PackedWeight.pack(randn(70, 100)), "bias": randn(70), **changes}
    int8_rows = changes.get("int8_rows", False)
    linear(arguments["x"], arguments["weight"], arguments["bias"], int8_rows, backend=changes.get("backend"))


MISUSE = {
    "x of another width": ({"x": torch.zeros(7, 99)}, r"shapes do not fit: x \[7, 99\], weight \[70, 100\]"),
    "one vector as x": ({"x": torch.zeros(100)}, "shapes do not fit"),
    "bias of another width": ({"bias": torch.zeros(71)}, r"shapes do not fit.*bias \[71\]"),
    "narrow x": ({"x": torch.zeros(7, 100).bfloat16()}, "dtypes do not fit: x torch.bfloat16"),
    "narrow bias": ({"bias": torch.zeros(70).half()}, "dtypes do not fit.*bias torch.float16"),
    "transposed x": ({"x": torch.zeros(100, 7).T}, "strides do not fit"),
    "two devices": ({"x": torch.zeros(7, 100, device="meta"), "backend": "torch"}, "devices do not fit: x meta"),
    "int8 rows before floats": ({"int8_rows": True}, "rows in int8 need a quantised weight, this one is float32"),
    "training": ({"x": torch.zeros(7, 100, requires_grad=True)}, "no gradient flows"),
}


@pytest.mark.parametrize("misuse", MISUSE)
def test_arguments_outside_the_contract_are_refused(misuse: str) -> None:
    changes, message = MISUSE[misuse]
    with pytest.raises(ConfigError, match=message):
        _call(**changes)
