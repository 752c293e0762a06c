"""Memory for weights: few large pieces on huge pages, where the system gives these."""

from __future__ import annotations

import torch
from torch import Tensor

HUGE_PAGE = 2 * 1024 * 1024
CHUNK_BYTES = 32 * HUGE_PAGE
LINE = 64


class WeightMemory:
    """Hands out memory for one weight after another.

    A decoding step reads all of it once, and with small pages a good part of the time goes into looking them up.
    """

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def take(self, num_bytes: int) -> Tensor:
        """Uninitialised uint8 [num_bytes] that begin at a cache line."""
        if num_bytes > len(self._rest):
            self._rest = _huge(max(num_bytes, CHUNK_BYTES))
        taken, self._rest = self._rest[:num_bytes], self._rest[-(-num_bytes // LINE) * LINE :]
        return taken


def _huge(num_bytes: int) -> Tensor:
    """Uninitialised bytes that begin at a huge page."""
    from pss_engine.ops.cpp import advise_huge_pages

    block = torch.empty(num_bytes + HUGE_PAGE, dtype=torch.uint8)
    first = -block.data_ptr() % HUGE_PAGE
    memory = block[first : first + num_bytes]
    advise_huge_pages(memory)
    return memory
