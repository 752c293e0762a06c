"""rms_norm, apply_rope and silu_mul: the formulas, gradients where they flow, and every row alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops import apply_rope, rms_norm, silu_mul
from tests.ops.isas import assert_rows_stand_alone, each_isa, needs_cpp, running, with_threads

BACKENDS = rms_norm.backends("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}
SIZES = (1, 7, 16, 33, 100, 576)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_right(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def angles(num_rows: int, half: int) -> tuple[Tensor, Tensor]:
    turned = randn(num_rows, half) * 10
    return turned.cos(), turned.sin()


@needs_cpp
@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm_is_its_formula(isa: str, dtype: torch.dtype, size: int) -> None:
    x, weight = (randn(5, size) * 3).to(dtype), (randn(size) + 2).to(dtype)
    wide = x.double()
    expected = weight.double() * wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    for backend in BACKENDS:
        with running(isa):
            assert_right(rms_norm(x, weight, 1e-5, backend=backend), expected, dtype)


@needs_cpp
@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("half, head_dim", [(4, 8), (4, 11), (8, 16), (20, 40), (32, 64)])
def test_apply_rope_turns_pairs_and_copies_the_rest(isa: str, dtype: torch.dtype, half: int, head_dim: int) -> None:
    x, (cos, sin) = randn(5, 3, head_dim).to(dtype), angles(5, half)
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    turned = pairs * torch.complex(cos.double(), sin.double())[:, None]
    expected = torch.cat([turned.real, turned.imag, x[..., 2 * half :].double()], dim=-1)
    for backend in BACKENDS:
        with running(isa):
            assert_right(apply_rope(x, cos, sin, backend=backend), expected, dtype)


@needs_cpp
@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_silu_mul_is_its_formula(isa: str, dtype: torch.dtype, size: int) -> None:
    x = (randn(5, 2 * size) * 3).to(dtype)
    gate, up = x.double().chunk(2, dim=-1)
    for backend in BACKENDS:
        with running(isa):
            assert_right(silu_mul(x, backend=backend), gate * gate.sigmoid() * up, dtype)


@needs_cpp
@each_isa
def test_silu_of_any_size_is_finite_and_precise(isa: str) -> None:
    gate = torch.cat([torch.linspace(-120, 120, 4001), torch.tensor([-1e30, -0.0, 0.0, 1e30, torch.inf, torch.nan])])
    with running(isa):
        found = silu_mul(torch.cat([gate, torch.ones_like(gate)])[None])[0]
    expected = (gate.double() * gate.double().sigmoid()).float()
    torch.testing.assert_close(found, expected, rtol=4e-7, atol=1e-35, equal_nan=True)


OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "rms_norm": lambda x: rms_norm(x, randn(x.shape[1]), 1e-5),
    "apply_rope": lambda x: apply_rope(x.view(len(x), 2, -1), *(a[:1].expand(len(x), -1).contiguous() for a in TURNS)),
    "silu_mul": silu_mul,
}
TURNS = angles(1, 15)


@needs_cpp
@each_isa
@pytest.mark.parametrize("op", OPS)
def test_a_row_does_not_depend_on_the_other_rows_or_their_number(isa: str, op: str) -> None:
    x = randn(133, 74)
    with running(isa):
        assert_rows_stand_alone(OPS[op], x, (1, 2, 7, 40))


@needs_cpp
@pytest.mark.parametrize("op", OPS)
def test_the_number_of_threads_changes_no_bit(op: str) -> None:
    x = randn(3000, 740)
    if op == "apply_rope":
        x = x[:, :74].contiguous()
    one, *others = (with_threads(count, lambda: OPS[op](x)) for count in (1, 2, 3))
    assert all(torch.equal(one, other) for other in others)


@pytest.mark.parametrize("op", OPS)
def test_rows_may_lie_apart(op: str) -> None:
    wide = randn(9, 100)
    torch.testing.assert_close(OPS[op](wide[:, 3:77]), OPS[op](wide[:, 3:77].clone()), rtol=0, atol=0)


@pytest.mark.parametrize("op", OPS)
def test_where_a_gradient_is_wanted_it_flows(op: str) -> None:
    x = randn(3, 74).requires_grad_()
    y = OPS[op](x)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    with torch.no_grad():
        torch.testing.assert_close(OPS[op](x), y.detach())


MISUSE: dict[str, tuple[Callable[[], object], str]] = {
    "weight of another width": (
        lambda: rms_norm(randn(2, 8), randn(9), 1e-5),
        r"rms_norm: tensors do not fit: x \[2, 8\]",
    ),
    "weight of another dtype": (lambda: rms_norm(randn(2, 8), randn(8).half(), 1e-5), "rms_norm.*torch.float16"),
    "transposed rows": (lambda: rms_norm(randn(8, 8).T, randn(8), 1e-5), "rms_norm.*do not fit"),
    "angles past the head": (lambda: apply_rope(randn(2, 3, 8), randn(2, 5), randn(2, 5)), "apply_rope.*do not fit"),
    "angles of other rows": (lambda: apply_rope(randn(2, 3, 8), randn(3, 4), randn(3, 4)), "apply_rope.*do not fit"),
    "an odd width": (lambda: silu_mul(randn(2, 7)), r"silu_mul.*\[2, 7\].*expected rows \[T, 2 I\]"),
}


@pytest.mark.parametrize("misuse", MISUSE)
def test_arguments_outside_the_contract_are_refused(misuse: str) -> None:
    call, message = MISUSE[misuse]
    with pytest.raises(ConfigError, match=message):
        call()
