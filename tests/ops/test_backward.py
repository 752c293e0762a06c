"""The written-out gradients are autograd's, in any strides, each row alone; the loss is cross entropy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pss_engine.errors import ConfigError
from pss_engine.ops import cross_entropy, rms_norm_backward, silu_mul_backward
from tests.ops.isas import assert_rows_stand_alone, each_isa, needs_cpp, running, with_threads

SIZES = (1, 7, 16, 33, 100, 576)
BACKENDS = rms_norm_backward.backends("cpu")


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def gradient_of(compute: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> Tensor:
    """Autograd's, in float64."""
    wide = x.double().requires_grad_()
    (found,) = torch.autograd.grad(compute(wide), wide, dy.double())
    return found


@needs_cpp
@each_isa
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("beside", [False, True])
def test_rms_norm_backward_is_the_gradient(isa: str, size: int, beside: bool) -> None:
    x, dy, weight = randn(5, size + 3)[:, :size], randn(5, size + 2)[:, 1 : size + 1], randn(size) + 2
    residual = randn(5, size + 1)[:, :size] if beside else None
    expected = gradient_of(lambda wide: weight.double() * F.rms_norm(wide, (size,), eps=1e-5), x, dy)
    for backend in BACKENDS:
        with running(isa):
            found = rms_norm_backward(dy, x, weight, 1e-5, residual, backend=backend)
        total = expected if residual is None else expected + residual.double()
        torch.testing.assert_close(found.double(), total, rtol=1e-5, atol=1e-5)


@needs_cpp
@each_isa
@pytest.mark.parametrize("size", SIZES)
def test_silu_mul_backward_is_the_gradient(isa: str, size: int) -> None:
    gate_up, dy = randn(5, 2 * size + 3)[:, : 2 * size] * 8, randn(5, size + 2)[:, 1 : size + 1]
    expected = gradient_of(lambda wide: F.silu(wide[:, :size]) * wide[:, size:], gate_up, dy)
    for backend in BACKENDS:
        with running(isa):
            found = silu_mul_backward(dy, gate_up, backend=backend)
        torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)


@needs_cpp
@each_isa
@pytest.mark.parametrize("size", [1, 7, 16, 33, 1000])
def test_cross_entropy_is_the_loss_and_becomes_its_gradient(isa: str, size: int) -> None:
    logits, labels = randn(6, size + 3)[:, :size] * 10, torch.arange(6) % size
    expected = F.cross_entropy(logits.double(), labels, reduction="none")
    slope = logits.double().softmax(-1) - F.one_hot(labels, size)
    for backend in BACKENDS:
        with running(isa):
            kept, changed = logits.clone(), logits.clone()
            found = cross_entropy(kept, labels, False, backend=backend)
            again = cross_entropy(changed, labels, True, backend=backend)
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=2e-6)
        torch.testing.assert_close(found, again, rtol=0, atol=0)
        assert torch.equal(kept, logits)
        torch.testing.assert_close(changed.double(), slope, rtol=1e-5, atol=1e-6)


def test_logits_of_any_height_give_a_finite_loss() -> None:
    logits = torch.tensor([[1e30, 0.0], [-1e30, 0.0], [200.0, -200.0]])
    for backend in BACKENDS:
        found = cross_entropy(logits.clone(), torch.tensor([0, 1, 1]), False, backend=backend)
        assert found.tolist() == [0.0, 0.0, 400.0]


OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "rms_norm_backward": lambda x: rms_norm_backward(x.flip(1), x, randn(x.shape[1]), 1e-5, x),
    "silu_mul_backward": lambda x: silu_mul_backward(x[:, ::2].contiguous(), x),
    "cross_entropy": lambda x: (logits := x.clone(), cross_entropy(logits, torch.zeros(len(x)).long(), True))[0],
}


@needs_cpp
@each_isa
@pytest.mark.parametrize("op", OPS)
def test_a_row_depends_neither_on_the_others_nor_on_the_threads(isa: str, op: str) -> None:
    x = randn(133, 740)
    with running(isa):
        together = with_threads(2, lambda: OPS[op](x))
        assert torch.equal(together, with_threads(1, lambda: OPS[op](x)))
        assert_rows_stand_alone(OPS[op], x, (1, 2, 40))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_floats_are_rounded_once(dtype: torch.dtype) -> None:
    x, dy, weight = randn(4, 64, dtype=dtype), randn(4, 64, dtype=dtype), randn(64, dtype=dtype)
    gate_up = randn(4, 128, dtype=dtype)
    wide = rms_norm_backward(dy.float(), x.float(), weight.float(), 1e-5, dy.float())
    for backend in BACKENDS:
        found = rms_norm_backward(dy, x, weight, 1e-5, dy, backend=backend)
        assert found.dtype == silu_mul_backward(dy, gate_up, backend=backend).dtype == dtype
        torch.testing.assert_close(found.float(), wide, rtol=2e-2, atol=2e-2)


MISUSE: dict[str, tuple[Callable[[], object], str]] = {
    "rows of another width": (lambda: rms_norm_backward(randn(2, 8), randn(2, 9), randn(9), 1e-5), "rms_norm_backward"),
    "another dtype beside": (
        lambda: rms_norm_backward(randn(2, 8), randn(2, 8), randn(8), 1e-5, randn(2, 8).half()),
        "residual.*torch.float16",
    ),
    "as many gates as gradients": (lambda: silu_mul_backward(randn(2, 8), randn(2, 8)), r"silu_mul_backward.*2 I"),
    "a label past the last": (
        lambda: cross_entropy(randn(2, 8), torch.tensor([0, 8]), True),
        "cross_entropy: values do not fit: labels 0 to 8; expected 0 to 7",
    ),
    "labels of other rows": (lambda: cross_entropy(randn(2, 8), torch.tensor([0]), True), "cross_entropy: tensors"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_refused_with_what_was_seen(name: str) -> None:
    call, message = MISUSE[name]
    with pytest.raises(ConfigError, match=message):
        call()
