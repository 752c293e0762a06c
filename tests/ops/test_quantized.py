"""Quantised weights by their parts: the values of GGUF's formats, and packing that loses nothing."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize
from gguf.constants import GGML_QUANT_SIZES

from pss_engine.errors import ConfigError
from pss_engine.models.gguf_blocks import read_tensor
from pss_engine.ops import PackedWeight, quantize_int8
from pss_engine.ops.quantized import QuantFormat, QuantizedWeight
from tests.ops.quantized_cases import FORMATS, random_quantized

each_format = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)


def assert_same_parts(a: QuantizedWeight, b: QuantizedWeight) -> None:
    for field in fields(QuantizedWeight):
        one, other = getattr(a, field.name), getattr(b, field.name)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, field.name


def stored(kind: str, num_rows: int, in_features: int) -> SimpleNamespace:
    """A tensor of a GGUF file with any bytes, but for its float16 factors, which are small numbers."""
    block, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    data = np.random.default_rng(5).integers(0, 256, (num_rows, in_features // block, num_bytes), dtype=np.uint8)
    for at in (208,) if kind == "Q6_K" else (0, 2) if kind in ("Q4_1", "Q4_K", "Q5_K") else (0,):
        halves = np.random.default_rng(at).standard_normal(data.shape[:2]).astype(np.float16)
        data[..., at : at + 2] = halves[..., None].view(np.uint8)
    shape = np.array([in_features, num_rows])
    return SimpleNamespace(
        name="w", tensor_type=GGMLQuantizationType[kind], shape=shape, data=data.reshape(num_rows, -1)
    )


@each_format
def test_a_gguf_tensor_has_the_values_that_gguf_gives_it(format: QuantFormat) -> None:
    tensor = stored(format.name.upper(), 7, 512)
    found = read_tensor(tensor)
    assert isinstance(found, QuantizedWeight)
    assert torch.equal(found.dequantize(), torch.from_numpy(dequantize(tensor.data, tensor.tensor_type)))


@pytest.mark.parametrize("kind", ["Q3_K", "IQ4_NL", "Q5_0"])
def test_a_quantisation_that_is_not_supported_is_named(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"is {kind} .*choices: F32, F16, BF16, Q8_0"):
        read_tensor(stored(kind, 2, 256))


@each_format
@pytest.mark.parametrize("num_rows", [1, 15, 16, 33])
def test_packing_loses_nothing(format: QuantFormat, num_rows: int) -> None:
    weight = random_quantized(format, num_rows, 512)
    packed = PackedWeight.pack(weight)
    assert packed.num_bytes == PackedWeight.bytes_of(weight)
    assert_same_parts(packed.parts(), weight)
    assert torch.equal(packed.unpack(), weight.dequantize())


@each_format
def test_rows_may_be_put_in_another_order_and_together(format: QuantFormat) -> None:
    weight = random_quantized(format, 9, 256)
    order = torch.tensor([3, 0, 8])
    assert torch.equal(weight.rows(order).dequantize(), weight.dequantize()[order])
    both = QuantizedWeight.cat([weight.rows(slice(0, 4)), weight.rows(slice(4, 9))])
    assert_same_parts(both, weight)


def test_int8_is_the_q8_0_of_gguf() -> None:
    weight = torch.randn(9, 128, generator=torch.Generator().manual_seed(3))
    weight[2, 32:64] = 0
    kind = GGMLQuantizationType.Q8_0
    expected = dequantize(quantize(weight.numpy(), kind), kind)
    assert torch.equal(quantize_int8(weight).dequantize(), torch.from_numpy(expected))


def test_int8_takes_any_width_and_refuses_what_no_scale_reaches() -> None:
    weight = torch.randn(3, 77, generator=torch.Generator().manual_seed(3))
    found = quantize_int8(weight)
    assert found.shape == (3, 77)
    torch.testing.assert_close(found.dequantize(), weight, rtol=0, atol=float(weight.abs().max()) / 250)
    for bad in (torch.nan, 1e10):
        weight[1, 5] = bad
        with pytest.raises(ConfigError, match="not finite, or its group's scale is over float16's 65504"):
            quantize_int8(weight)
