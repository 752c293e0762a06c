"""argmax and sample_tokens: the first of the largest, and draws whose shares are those of the softmax."""

from __future__ import annotations

import pytest
import torch

from pss_engine.errors import ConfigError
from pss_engine.ops import argmax, sample_tokens
from tests.ops.isas import each_isa, needs_cpp, running

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 100, 9000])
def test_argmax_takes_the_first_of_the_largest(dtype: torch.dtype, vocabulary: int) -> None:
    logits = randn(4, vocabulary + 3).to(dtype)[:, :vocabulary]
    logits[1] = -torch.inf
    logits[2, [vocabulary // 2, vocabulary - 1]] = 50.0
    expected = torch.tensor([row.tolist().index(max(row.tolist())) for row in logits])
    for backend in ("torch", "triton"):
        assert torch.equal(argmax(logits, backend=backend), expected)


@needs_cpp
@each_isa
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 31, 2048, 49152])
def test_the_compiled_argmax_is_the_reference(isa: str, dtype: torch.dtype, vocabulary: int) -> None:
    logits = randn(33, vocabulary + 3).to(dtype)[:, :vocabulary]
    logits[1] = -torch.inf
    logits[2, vocabulary // 2 :] = 50.0
    with running(isa):
        assert torch.equal(argmax(logits, backend="cpp"), argmax(logits, backend="torch"))


@pytest.mark.usefixtures("interpreted")
def test_backends_draw_the_same_tokens() -> None:
    logits = randn(6, 5000) * 2
    temperatures = torch.tensor([0.0, 0.5, 1.0, 1.0, 2.0, 0.7])
    seeds, steps = torch.tensor([1, 2, 3, 3, 2**40 + 5, -1]), torch.tensor([0, 1, 2, 3, 4, 5])
    drawn = sample_tokens(logits, temperatures, seeds, steps, backend="triton")
    assert torch.equal(drawn, sample_tokens(logits, temperatures, seeds, steps, backend="torch"))
    assert drawn[0] == logits[0].argmax()


def test_shares_of_draws_are_those_of_the_softmax() -> None:
    count, logits = 20000, torch.tensor([0.0, 1.0, 2.0, -1.0])
    drawn = sample_tokens(
        logits.expand(count, 4).contiguous(),
        torch.full((count,), 0.8),
        torch.full((count,), 91),
        torch.arange(count),
    )
    shares = torch.bincount(drawn, minlength=4) / count
    torch.testing.assert_close(shares, (logits / 0.8).softmax(-1), rtol=0, atol=0.015)


def test_a_row_draws_the_same_alone() -> None:
    logits, ones = randn(5, 50), torch.ones(5)
    seeds, steps = torch.arange(5), torch.arange(5) * 7
    together = sample_tokens(logits, ones, seeds, steps)
    for t in range(5):
        row = slice(t, t + 1)
        assert sample_tokens(logits[row], ones[row], seeds[row], steps[row])[0] == together[t]


def test_misuse_is_named() -> None:
    with pytest.raises(ConfigError, match=r"argmax: tensors do not fit: logits \[3, 0\]"):
        argmax(torch.zeros(3, 0))
    with pytest.raises(ConfigError, match=r"sample_tokens: .*seeds \[2\] torch.int32"):
        argument = torch.zeros(2, dtype=torch.int32)
        sample_tokens(torch.zeros(2, 3), torch.ones(2), argument, argument)
