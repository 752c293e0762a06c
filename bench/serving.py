"""What a serving stack did with one batch of requests that came together: the common tongue of ours and its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pss_engine.models.source import ModelSource


@dataclass(frozen=True)
class Served:
    """One entry a request in ``token_ids`` and in the times; seconds from the arrival of the whole batch.

    Attributes:
        first_token_s, total_s: empty where the stack does not tell.
        seconds: from the arrival to the last token of all.
    """

    token_ids: Sequence[Sequence[int]]
    first_token_s: Sequence[float]
    total_s: Sequence[float]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds

    @property
    def per_token_s(self) -> list[float]:
        """Seconds for each token after the first, by request."""
        times = zip(self.token_ids, self.first_token_s, self.total_s, strict=False)
        return [(total - first) / max(1, len(tokens) - 1) for tokens, first, total in times]


class PeerFailed(Exception):
    """A stack that is installed and does not run here, with the reason."""


class Server(Protocol):
    """A stack with all adapters at hand. A peer's module has a class ``Server`` with these two methods, and ``NAME``.

    ``NOTE`` in the module, if there, says why its tokens cannot be those of the others.
    """

    def __init__(self, source: ModelSource, adapters: Mapping[str, Path], max_tokens: int) -> None:
        """Load model and adapters (name -> PEFT folder); a request has at most ``max_tokens`` with its answer.

        Raises PeerFailed where the stack cannot run.
        """

    def serve(self, prompts: Sequence[Sequence[int]], sessions: Sequence[str], max_new_tokens: int) -> Served:
        """Greedy, ``max_new_tokens`` for each prompt whatever they are; request i with the adapter ``sessions[i]``."""


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least this share of all does not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]
