"""From the places of passages to the token ids of prompts."""

from __future__ import annotations

import torch
from torch import Tensor


def gather_tokens(
    passages: Tensor, tokens: Tensor, starts: Tensor, before: list[Tensor], after: list[Tensor], separator: Tensor
) -> list[Tensor]:
    """The answer prompt of each group as token ids: what stands before, its passages, best first, what stands after.

    Args:
        passages: [G, k] int32, -1 = none; from ``retrieve_topk``.
        tokens: [M] int32: the token ids of all passages, one after the other, on the device of ``passages``.
        starts: [N + 1] int64: passage n is ``tokens[starts[n]:starts[n + 1]]``.
        before, after: token ids of each of the G groups.
        separator: token ids between two passages.

    Returns:
        G tensors of int32.
    """
    held = passages.clamp(min=0).long()
    # One transfer for the whole batch; what is moved are places, not scores and not text.
    spans = torch.stack([torch.where(passages < 0, -1, starts[held]), starts[held + 1]], -1).tolist()
    prompts = []
    for row, first, last in zip(spans, before, after, strict=True):
        parts = [tokens[start:end] for start, end in row if start >= 0]
        joined = [piece for part in parts for piece in (separator, part)][1:]
        prompts.append(torch.cat([first, *joined, last]))
    return prompts
