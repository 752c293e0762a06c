"""The patched Triton interpreter, which the tests of the kernels rely on."""

from __future__ import annotations

import pytest
import torch

from tests import interpreter

triton = pytest.importorskip("triton", reason="triton is not installed")
tl = pytest.importorskip("triton.language", reason="triton is not installed")


@pytest.fixture(autouse=True)
def interpreted() -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled for the CUDA device here, not interpreted")
    interpreter.install()


@triton.jit
def copy_kernel(source, target, n, SIZE: tl.constexpr, EXTRA: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, SIZE)
    mask = offsets < n + EXTRA
    value = tl.load(source + offsets, mask=mask, other=0.0)
    tl.store(target + offsets, value.to(target.dtype.element_ty), mask=mask)


@triton.jit
def double_kernel(source, target, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, SIZE)
    value = tl.load(source + offsets)
    tl.store(target + offsets, value + value)


def test_an_access_behind_the_end_of_a_tensor_raises() -> None:
    source, target = torch.ones(10), torch.zeros(10)
    copy_kernel[(1,)](source, target, 10, SIZE=16, EXTRA=0)
    assert torch.equal(target, source)
    with pytest.raises(Exception, match="lanes out of bounds"):
        copy_kernel[(1,)](source, target, 10, SIZE=16, EXTRA=1)


def test_float32_is_rounded_to_bfloat16_as_torch_rounds_it() -> None:
    source = torch.randn(1024, generator=torch.Generator().manual_seed(91))
    source[:4] = torch.tensor([torch.inf, -torch.inf, 3.4e38, 1e-40])
    target = torch.zeros(1024, dtype=torch.bfloat16)
    copy_kernel[(1,)](source, target, 1024, SIZE=1024, EXTRA=0)
    assert torch.equal(target, source.bfloat16())


def test_bfloat16_arithmetic_is_done_on_values_not_on_bits() -> None:
    source = torch.randn(64, generator=torch.Generator().manual_seed(91)).bfloat16()
    target = torch.zeros_like(source)
    double_kernel[(1,)](source, target, SIZE=64)
    assert torch.equal(target, source + source)
