"""float8 as bytes: every pattern is read, and every value rounded, as torch does it."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed")
tl = pytest.importorskip("triton.language", reason="triton is not installed")

pytestmark = pytest.mark.usefixtures("interpreted")


@triton.jit
def read_kernel(source, target, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    from pss_engine.kernels.float8 import decoded

    i = tl.arange(0, SIZE)
    tl.store(target + i, decoded(tl.load(source + i)))


@triton.jit
def write_kernel(source, target, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    from pss_engine.kernels.float8 import encoded

    i = tl.arange(0, SIZE)
    tl.store(target + i, encoded(tl.load(source + i)))


def test_every_pattern_is_read_as_torch_reads_it() -> None:
    patterns = torch.arange(256).to(torch.uint8)
    values = torch.zeros(256)
    read_kernel[(1,)](patterns, values, SIZE=256)
    torch.testing.assert_close(values, patterns.view(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True)


def test_values_are_rounded_as_torch_rounds_them_and_saturate() -> None:
    generator = torch.Generator().manual_seed(91)
    exponents = torch.randint(-14, 10, (4096,), generator=generator)
    values = torch.randn(4096, generator=generator) * 2.0**exponents
    exact = torch.arange(255).to(torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0)
    values[:254] = (exact[:-1] + exact[1:]) / 2  # halves between neighbours
    values[254:258] = torch.tensor([0.0, -0.0, 460.0, -1e30])
    patterns = torch.zeros(4096, dtype=torch.uint8)
    write_kernel[(1,)](values, patterns, SIZE=4096)
    expected = values.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(patterns, expected)
