"""From the logits of a step to the next tokens of each row."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from pss_engine.engine.request import SamplingParams
from pss_engine.engine.scheduler import Chunk
from pss_engine.ops.sampling import argmax, sample_tokens


def next_tokens(logits: Tensor, chunks: Rows[Chunk]) -> list[list[int]]:
    """For each chunk its next tokens: the drafted ones that greedy decoding would give, then the one after them.

    Greedy rows take the first of the largest logits, so the tokens are those of decoding one by one. A sampled row has
    no draft; what it draws depends on its own logits, its seed and how many tokens it has: neither the rows beside it
    nor a preemption changes it.

    Args:
        logits: [R, V] of the last pending token and each drafted one of each chunk, in order.
    """
    starts = [0]
    for chunk in chunks:
        starts.append(starts[-1] + 1 + len(chunk.draft))
    sampled = [at for at, chunk in enumerate(chunks) if chunk.sequence.request.sampling.temperature > 0]
    chosen = argmax(logits)
    if sampled:
        rows = [starts[at] for at in sampled]
        chosen[rows] = _draw(logits[rows], [chunks[at] for at in sampled])
    tokens: list[int] = chosen.tolist()
    return [
        _accepted(tokens[start:end], chunk.draft) for start, end, chunk in zip(starts, starts[1:], chunks, strict=False)
    ]


def _accepted(chosen: list[int], draft: Rows[int]) -> list[int]:
    count = 0
    while count < len(draft) and draft[count] == chosen[count]:
        count += 1
    return chosen[: count + 1]


def _draw(logits: Tensor, chunks: Rows[Chunk]) -> Tensor:
    """Tokens [B] of rows [B, V] from ``softmax(logits / temperature)`` cut to top_k, then to top_p."""
    params = [chunk.sequence.request.sampling for chunk in chunks]
    cut = torch.stack([_cut(row, of_row) for row, of_row in zip(logits.float(), params, strict=True)])
    place = logits.device
    drawn: Tensor = sample_tokens(
        cut,
        torch.tensor([of_row.temperature for of_row in params], device=place),
        torch.tensor([_word(of_row.seed) for of_row in params], device=place),
        torch.tensor([len(chunk.sequence.generated) for chunk in chunks], device=place),
    )
    return drawn


def _word(seed: int) -> int:
    """A seed as the 32 bits that count; the upper ones are mixed in."""
    return (seed ^ (seed >> 32) * 0x9E3779B1) & 0xFFFFFFFF


def _cut(logits: Tensor, params: SamplingParams) -> Tensor:
    """Logits [V] with -inf for the tokens that top_k and top_p leave out."""
    if not params.top_k and params.top_p == 1.0:
        return logits
    values, order = logits.sort(descending=True, stable=True)
    if params.top_k:
        values, order = values[: params.top_k], order[: params.top_k]
    probabilities = (values / params.temperature).softmax(-1)
    # the token that crosses top_p is kept, so at least one always is
    keep = probabilities.cumsum(-1) - probabilities < params.top_p
    return torch.full_like(logits, float("-inf")).scatter_(0, order[keep], values[keep])
