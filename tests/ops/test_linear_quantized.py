"""linear over quantised weights: the bits of their dequantised copies, and what rows in int8 add to that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pss_engine.ops import PackedWeight, gather_rows, linear
from pss_engine.ops.linear import quantize_rows
from pss_engine.ops.quantized import Q8_0, QuantFormat
from tests.ops.isas import ISAS, each_isa, needs_cpp, running, with_threads
from tests.ops.quantized_cases import FORMATS, random_quantized

each_format = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
SHAPES = ((70, 256), (33, 1536), (5, 1024))
NUM_ROWS = (1, 2, 3, 5, 8, 9, 17, 70)


def rows(count: int, in_features: int) -> Tensor:
    return torch.randn(count, in_features, generator=torch.Generator().manual_seed(count))


def shapes(format: QuantFormat) -> tuple[tuple[int, int], ...]:
    """An int8 weight may come from any model, so its width need not be whole groups."""
    return (*SHAPES, (70, 100), (5, 577), (17, 1)) if format == Q8_0 else SHAPES


@needs_cpp
@each_isa
@each_format
def test_a_quantised_weight_gives_the_bits_of_its_dequantised_copy(isa: str, format: QuantFormat) -> None:
    for shape in shapes(format):
        weight = random_quantized(format, *shape)
        packed, copy = PackedWeight.pack(weight), PackedWeight.pack(weight.dequantize())
        with running(isa):
            for count in NUM_ROWS:
                x = rows(count, shape[1])
                assert torch.equal(linear(x, packed), linear(x, copy)), (shape, count)


@needs_cpp
@each_isa
@each_format
def test_rows_in_int8_are_those_of_the_reference(isa: str, format: QuantFormat) -> None:
    for shape in shapes(format):
        weight = random_quantized(format, *shape)
        packed = PackedWeight.pack(weight)
        with running(isa):
            for count in NUM_ROWS:
                x = rows(count, shape[1])
                expected = quantize_rows(x).double() @ weight.dequantize().double().T
                found = linear(x, packed, None, True)
                torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5 * shape[1] ** 0.5)
                alone = linear(x[-1:], packed, None, True)
                assert torch.equal(alone[0], found[-1]), "a row depends on nothing beside it"


@needs_cpp
@each_isa
@each_format
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_highest_codes_overflow_no_sum_of_products(isa: str, format: QuantFormat, sign: float) -> None:
    """Every product is the largest that there is, and all have one sign: some instruction sets add them in 16 bits."""
    weight = random_quantized(format, 33, 1536)
    highest = 127 if format == Q8_0 else 2 ** (format.low_bits + format.high_bits) - 1
    weight = replace(weight, codes=torch.full_like(weight.codes, highest))
    x = torch.full((9, 1536), sign)
    expected = quantize_rows(x).double() @ weight.dequantize().double().T
    with running(isa):
        found = linear(x, PackedWeight.pack(weight), None, True)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@needs_cpp
@each_format
def test_rows_in_int8_have_the_same_bits_on_all_instruction_sets_with_fused_multiply_add(format: QuantFormat) -> None:
    weight = PackedWeight.pack(random_quantized(format, 70, 768))
    found = []
    for isa in ISAS:
        if isa != "scalar":
            with running(isa):
                found.append(linear(rows(9, 768), weight, None, True))
    assert all(torch.equal(found[0], other) for other in found)


@needs_cpp
@each_format
@pytest.mark.parametrize("int8_rows", [False, True])
def test_the_number_of_threads_changes_no_bit(format: QuantFormat, int8_rows: bool) -> None:
    weight, x = PackedWeight.pack(random_quantized(format, 1111, 768)), rows(9, 768)
    one, *others = (with_threads(count, lambda: linear(x, weight, None, int8_rows)) for count in (1, 2, 3, 8))
    assert all(torch.equal(one, other) for other in others)


@each_format
@pytest.mark.parametrize("backend", linear.backends("cpu"))
def test_a_bias_and_rows_apart_are_as_in_the_reference(backend: str, format: QuantFormat) -> None:
    weight, bias = random_quantized(format, 70, 256), torch.arange(70.0)
    wide = torch.full((9, 300), torch.nan)
    wide[:, 20:276] = rows(9, 256)
    x = wide[:, 20:276]
    for int8_rows in (False, True):
        found = linear(x, PackedWeight.pack(weight), bias, int8_rows, backend=backend)
        taken = quantize_rows(x) if int8_rows else x
        torch.testing.assert_close(found, taken @ weight.dequantize().T + bias, rtol=0, atol=2e-4)


@each_format
@pytest.mark.parametrize("backend", linear.backends("cpu"))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so_in_its_row_only(backend: str, format: QuantFormat, bad: float) -> None:
    x, weight = rows(3, 256), PackedWeight.pack(random_quantized(format, 33, 256))
    clean = linear(x, weight, None, True, backend=backend)
    x[1, 77] = bad
    found = linear(x, weight, None, True, backend=backend)
    assert not found[1].isfinite().any()
    assert torch.equal(found[[0, 2]], clean[[0, 2]])


@each_format
@pytest.mark.parametrize("backend", gather_rows.backends("cpu"))
def test_a_table_of_quantised_rows_reads_them_dequantised(backend: str, format: QuantFormat) -> None:
    weight, ids = random_quantized(format, 70, 256), torch.tensor([69, 0, 17, 17, 15, 16])
    found = gather_rows(ids, PackedWeight.pack(weight), backend=backend)
    assert torch.equal(found, weight.dequantize()[ids])
