"""From logits to the next token of each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pss_engine.engine.request import SamplingParams
from pss_engine.ops.sampling import argmax


class TokenSampler:
    """Chooses the tokens of one request; owns its generator, so that the rows beside it change nothing."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._generator = torch.Generator().manual_seed(params.seed) if params.temperature > 0 else None

    @property
    def greedy(self) -> bool:
        return self._generator is None

    def sample(self, logits: Tensor) -> int:
        """Draw from ``softmax(logits / temperature)`` cut to top_k, then to top_p; logits [V], any float dtype."""
        params = self._params
        values, order = (logits.float().cpu() / params.temperature).sort(descending=True, stable=True)
        if params.top_k:
            values, order = values[: params.top_k], order[: params.top_k]
        probabilities = values.softmax(-1)
        # the token that crosses top_p is kept, so at least one always is
        keep = probabilities.cumsum(-1) - probabilities < params.top_p
        drawn = torch.multinomial(probabilities[keep], 1, generator=self._generator)
        return int(order[drawn])


def verify(logits: Tensor, draft: Sequence[int], sampler: TokenSampler) -> list[int]:
    """The next tokens of one row: the drafted ones that greedy decoding would give, then the one after them.

    logits [1 + len(draft), V] of the last known token and of each drafted one. Greedy rows take the first of the
    largest logits, so the tokens are those of decoding one by one; a sampled row has no draft.
    """
    if not sampler.greedy:
        return [sampler.sample(logits[0])]
    chosen: list[int] = argmax(logits).tolist()
    accepted = 0
    while accepted < len(draft) and draft[accepted] == chosen[accepted]:
        accepted += 1
    return chosen[: accepted + 1]
