"""masked_attention and its gradients: softmax attention as written, by autograd, for any heads and sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops import masked_attention, masked_attention_backward
from tests.ops.isas import each_isa, needs_cpp, running, with_threads

BACKENDS = masked_attention.backends("cpu")
SHAPES = ((1, 1, 1, 1, 8), (1, 7, 3, 1, 20), (2, 33, 4, 2, 16), (1, 70, 9, 3, 64), (1, 129, 2, 2, 32))


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def heads(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v inside the rows of one projection, and a mask under which each row sees itself and some before it."""
    num_sequences, num_rows, num_heads, num_kv_heads, dim = shape
    qkv = randn(num_sequences, num_rows, num_heads + 2 * num_kv_heads, dim)
    seen = torch.rand(num_sequences, num_rows, num_rows, generator=torch.Generator().manual_seed(1)) < 0.6
    seen = seen.tril() | torch.eye(num_rows, dtype=torch.bool)
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    return (*qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=2), mask)


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    shares = (torch.einsum("stnd,sund->sntu", q, k) * scale + mask[:, None]).softmax(-1)
    return torch.einsum("sntu,sund->stnd", shares, v)


@needs_cpp
@each_isa
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_gradients_are_those_of_softmax_attention(isa: str, shape: tuple[int, ...]) -> None:
    q, k, v, mask = heads(shape)
    dy = randn(*q.shape[:3], q.shape[3] + 4)[..., :-4]
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    expected = written_out(*wide, mask.double(), 0.3)
    slopes = torch.cat(torch.autograd.grad(expected, wide, dy.double()), dim=2)
    for backend in BACKENDS:
        with running(isa):
            out, shares = masked_attention(q, k, v, mask, 0.3, backend=backend)
            grads = masked_attention_backward(dy, q, k, v, shares, 0.3, backend=backend)
        torch.testing.assert_close(out.double(), expected.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(grads.double(), slopes, rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(shares.sum(-1), torch.ones(shares.shape[:-1]))


@needs_cpp
def test_bits_depend_neither_on_the_other_sequences_nor_on_the_threads() -> None:
    q, k, v, mask = heads((3, 70, 9, 3, 64))

    def both(first: int, last: int) -> Tensor:
        parts = [t[first:last] for t in (q, k, v)]
        out, shares = masked_attention(*parts, mask[first:last], 0.125)
        return torch.cat([out, masked_attention_backward(out, *parts, shares, 0.125)], dim=2)

    together = with_threads(2, lambda: both(0, 3))
    assert torch.equal(together, with_threads(1, lambda: both(0, 3)))
    assert torch.equal(together[1:2], both(1, 2))


def test_a_row_sees_as_much_when_rows_come_after_it() -> None:
    q, k, v, mask = heads((1, 40, 4, 2, 16))
    whole, _ = masked_attention(q, k, v, mask, 0.25)
    first, _ = masked_attention(q[:, :23], k[:, :23], v[:, :23], mask[:, :23, :23], 0.25)
    torch.testing.assert_close(whole[:, :23], first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_floats_stay_what_they_are(dtype: torch.dtype) -> None:
    q, k, v, mask = heads((2, 20, 4, 2, 16))
    expected, _ = masked_attention(q, k, v, mask, 0.25)
    for backend in BACKENDS:
        parts = [t.to(dtype) for t in (q, k, v)]
        out, shares = masked_attention(*parts, mask, 0.25, backend=backend)
        grads = masked_attention_backward(out, *parts, shares, 0.25, backend=backend)
        assert (out.dtype, shares.dtype, grads.dtype) == (dtype, dtype, dtype)
        torch.testing.assert_close(out.float(), expected, rtol=3e-2, atol=3e-2)


def test_what_does_not_fit_is_refused() -> None:
    q, k, v, mask = heads((1, 5, 4, 2, 8))
    _, shares = masked_attention(q, k, v, mask, 1.0)
    with pytest.raises(ConfigError, match=r"masked_attention: tensors do not fit.*mask \[1, 4, 4\]"):
        masked_attention(q, k, v, mask[:, 1:, 1:], 1.0)
    with pytest.raises(ConfigError, match=r"masked_attention: tensors do not fit.*k \[1, 5, 3, 8\]"):
        masked_attention(q, torch.cat([k, k[:, :, :1]], 2), torch.cat([v, v[:, :, :1]], 2), mask, 1.0)
    with pytest.raises(ConfigError, match=r"masked_attention_backward: tensors do not fit.*dy \[1, 5, 2, 8\]"):
        masked_attention_backward(q[:, :, :2], q, k, v, shares, 1.0)
