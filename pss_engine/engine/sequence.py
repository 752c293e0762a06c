"""The life of a request in the engine: its tokens, its memory, its state slot."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pss_engine.engine.request import Request
from pss_engine.kv import SequenceKV

if TYPE_CHECKING:
    from pss_engine.engine.detokenizer import Detokenizer
    from pss_engine.engine.sampler import TokenSampler
    from pss_engine.state import SessionState, SlotRef


@dataclass(eq=False)
class Sequence:
    """Tokens so far and how many of them are stored in the cache.

    Attributes:
        token_ids: prompt, then generated tokens.
        num_stored: leading tokens whose keys and values are in the cache.
        slot: the resident state, held while the sequence runs.
    """

    request: Request
    request_id: str
    token_ids: list[int]
    kv: SequenceKV
    sampler: TokenSampler
    detokenizer: Detokenizer
    state: SessionState | None = None
    slot: SlotRef | None = None
    num_stored: int = 0
    num_prompt: int = field(init=False)
    finish_reason: str = ""
    arrival: float = field(default_factory=time.monotonic)
    started: float = 0.0
    first_token: float = 0.0

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens still to be run before the next one can be sampled."""
        return len(self.token_ids) - self.num_stored

    @property
    def generated(self) -> list[int]:
        return self.token_ids[self.num_prompt :]
