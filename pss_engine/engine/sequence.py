"""The life of a request in the engine: its tokens, its memory, its state slot."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pss_engine.engine.request import DraftUsage, RequestOutput, Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pss_engine.engine.detokenizer import Detokenizer
    from pss_engine.engine.drafting import Drafter
    from pss_engine.engine.request import Request
    from pss_engine.engine.scheduler import Chunk
    from pss_engine.kv import SequenceKV
    from pss_engine.state import SlotRef, StateHandle


@dataclass(eq=False)
class Sequence:
    """Tokens so far and how many of them are stored in the cache.

    Attributes:
        token_ids: prompt, then generated tokens.
        max_new_tokens: what was asked for, ended by the context.
        drafter: proposes tokens where the request is greedy and its state has a readout.
        slot: the resident state, held while the sequence runs.
        num_stored: leading tokens whose keys and values are in the cache in all layers.
        num_shared: leading tokens that are there in the shared layers at least; never less than ``num_stored``.
        num_overtaken: requests that were admitted past it while its state was not ready.
    """

    request: Request
    request_id: str
    token_ids: list[int]
    max_new_tokens: int
    kv: SequenceKV
    detokenizer: Detokenizer
    state: StateHandle | None = None
    drafter: Drafter | None = None
    slot: SlotRef | None = None
    on_text: Callable[[str], None] | None = None
    num_stored: int = 0
    num_shared: int = 0
    num_overtaken: int = 0
    num_prompt: int = field(init=False)
    drafts: DraftUsage = field(default_factory=DraftUsage)
    finish_reason: str = ""
    arrival: float = field(default_factory=lambda: time.monotonic())
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

    def adopt(self, prefix: Mapping[str, list[int]]) -> None:
        """Begin where a known prefix ends."""
        self.num_stored, self.num_shared = self.kv.adopt(prefix)

    def draft(self, limit: int) -> list[int]:
        """Tokens that may follow the known ones, at most ``limit``; the last of the request is always sampled."""
        if self.drafter is None:
            return []
        left = self.max_new_tokens - len(self.generated) - 1
        return self.drafter.propose(self.generated, min(limit, left))

    def append(self, chunk: Chunk, tokens: list[int], eos_token_ids: tuple[int, ...]) -> int:
        """Take what was sampled after a chunk that completes, up to where the request ends; returns how many tokens.

        Sets ``finish_reason`` where it ends.
        """
        self.first_token = self.first_token or time.monotonic()
        num_kept = 0
        while num_kept < len(tokens) and not self.finish_reason:
            token = tokens[num_kept]
            num_kept += 1
            self.token_ids.append(token)
            ends_turn = token in eos_token_ids and not self.request.sampling.ignore_eos
            if ends_turn or self.detokenizer.push(token):
                self.finish_reason = "stop"
            elif len(self.generated) >= self.max_new_tokens:
                self.finish_reason = "length"
        # the last token is sampled, not stored; those before it were verified drafts, whose keys are in the cache
        self.store(chunk.num_pending + num_kept - 1)
        self.drafts.num_steps += 1
        self.drafts.drafted_tokens += len(chunk.draft)
        self.drafts.accepted_tokens += num_kept - 1
        if self.on_text:
            self.on_text(self.detokenizer.settled)
        return num_kept

    def close(self, reason: str, error: str = "") -> RequestOutput:
        """Give the memory back; what the request has come to."""
        usage = self.kv.close(len(self.generated))
        now, text = time.monotonic(), self.detokenizer.finish()
        timings = Timings(
            queue_s=(self.started or now) - self.arrival,
            time_to_first_token_s=(self.first_token or now) - self.arrival,
            total_s=now - self.arrival,
        )
        digest = self.state.digest if self.state else ""
        return RequestOutput(self.request_id, text, self.generated, reason, usage, timings, self.drafts, digest, error)

    def store(self, num_tokens: int) -> None:
        """``num_tokens`` more tokens are in the cache; publish what is whole."""
        self.num_stored += num_tokens
        self.num_shared = max(self.num_shared, self.num_stored)
        self.kv.stored(self.num_stored, self.num_shared)
        self.kv.publish(self.token_ids, min(self.num_stored, len(self.token_ids)))

    def rewind(self) -> None:
        """Back to the beginning: nothing is stored."""
        self.num_stored = self.num_shared = 0
