"""The next token of each row: the best of each stretch of the vocabulary, then the first best of these."""

import torch
import triton
import triton.language as tl

STRETCH = 4096  # tokens of one program


@triton.jit
def mix(x):
    """lowbias32, as in ops/sampling.py."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def stretch_kernel(
    logits, temperatures, seeds, steps, best, where,
    stride, vocabulary, num_stretches,
    STRETCH: tl.constexpr, SAMPLED: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0)
    stretch = tl.program_id(1)
    i = stretch * STRETCH + tl.arange(0, STRETCH)
    inside = i < vocabulary
    score = tl.load(logits + t.to(tl.int64) * stride + i, mask=inside, other=float("-inf")).to(tl.float32)
    if SAMPLED:
        temperature = tl.load(temperatures + t)
        key = mix(tl.load(seeds + t).to(tl.uint32) ^ mix(tl.load(steps + t).to(tl.uint32)))
        uniform = ((mix(key + i.to(tl.uint32)) >> 8).to(tl.float32) + 0.5) * (1.0 / 16777216.0)
        noisy = score / tl.maximum(temperature, 1e-30) - tl.log(-tl.log(uniform))
        score = tl.where(temperature > 0, noisy, score)
    highest = tl.max(score, 0)
    first = tl.min(tl.where((score == highest) & inside, i, 2147483647), 0)
    tl.store(best + t * num_stretches + stretch, highest)
    tl.store(where + t * num_stretches + stretch, first)


@triton.jit
def best_kernel(best, where, tokens, num_stretches, STRETCHES: tl.constexpr):
    t = tl.program_id(0)
    i = tl.arange(0, STRETCHES)
    score = tl.load(best + t * num_stretches + i, mask=i < num_stretches, other=float("-inf"))
    token = tl.load(where + t * num_stretches + i, mask=i < num_stretches, other=2147483647)
    first = tl.min(tl.where(score == tl.max(score, 0), token, 2147483647), 0)
    tl.store(tokens + t, first.to(tl.int64))


def _run(logits: torch.Tensor, sampling: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    num_rows, vocabulary = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return tokens
    num_stretches = triton.cdiv(vocabulary, STRETCH)
    best = torch.empty(num_rows, num_stretches, dtype=torch.float32, device=logits.device)
    where = torch.empty(num_rows, num_stretches, dtype=torch.int32, device=logits.device)
    with torch.cuda.device_of(logits):
        stretch_kernel[(num_rows, num_stretches)](
            logits, *(sampling or (best, best, best)), best, where,
            logits.stride(0), vocabulary, num_stretches,
            STRETCH=STRETCH, SAMPLED=sampling is not None, num_warps=4,
        )  # fmt: skip
        best_kernel[(num_rows,)](
            best, where, tokens, num_stretches, STRETCHES=triton.next_power_of_2(num_stretches), num_warps=1
        )
    return tokens


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """The first of the largest logits of each row [T, V]; [T] int64."""
    return _run(logits, None)


def sample_tokens(
    logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, steps: torch.Tensor
) -> torch.Tensor:
    """argmax of logits / temperature + noise; the noise is a hash of (seed, step, token)."""
    return _run(logits, (temperatures, seeds, steps))
