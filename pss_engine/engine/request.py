"""What a user asks of the engine, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pss_engine.errors import RequestRejected

if TYPE_CHECKING:
    from pss_engine.kv import CallUsage
    from pss_engine.models import Message


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen. Names follow Hugging Face's GenerationConfig.

    Attributes:
        max_new_tokens: at most this many.
        temperature: 0 is greedy.
        top_k: sample among the k most likely; 0 = all.
        top_p: sample among the smallest set whose probability reaches p.
        seed: with it a sampled request draws the same tokens again, whatever the batch around it.
        stop: strings that end the text; they are not part of it.
        ignore_eos: go on past the end-of-turn token (for measurements).
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise RequestRejected(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if not 0.0 <= self.temperature <= 100.0:
            raise RequestRejected(f"temperature is {self.temperature}; it must be between 0 and 100")
        if self.top_k < 0:
            raise RequestRejected(f"top_k is {self.top_k}; it must be 0 (all) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestRejected(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if isinstance(self.stop, str) or any(not text for text in self.stop):
            raise RequestRejected(f"stop is {self.stop!r}; it must be a sequence of non-empty strings")


GREEDY = SamplingParams()


@dataclass(frozen=True)
class Request:
    """One call.

    Attributes:
        prompt: chat messages (the model's template is applied), plain text, or token ids.
        session: id of the state to decode with; None = the base model.
        agent: who calls; usage is reported under this name.
        query: id of the user's query that this call serves; its calls are accounted together.
        usage_session: session that the call is charged to; empty = ``session``. Names the owner of a call that the base
            model decodes.
        max_kv_bytes: the call may hold at most so many bytes of KV, in whole blocks; None = no limit.
        max_query_kv_bytes: the live calls of its query, this one among them, may hold at most so many together.
        truncate_to_kv_budget: where a budget is exceeded, generate fewer tokens instead of being refused.
        priority: larger goes first; equal ones in order of arrival.
        deadline_s: seconds from arrival after which the request ends with what it has; None = never.
        scope: prefixes are shared inside one scope only; name a tenant where timing must not tell.
        request_id: unique among live requests; empty = the engine picks one.
    """

    prompt: str | Sequence[Message] | Sequence[int]
    sampling: SamplingParams = GREEDY
    session: str | None = None
    agent: str = ""
    request_id: str = ""
    priority: int = 0
    deadline_s: float | None = None
    scope: str = ""
    query: str = ""
    usage_session: str = ""
    max_kv_bytes: int | None = None
    max_query_kv_bytes: int | None = None
    truncate_to_kv_budget: bool = False

    def __post_init__(self) -> None:
        for name in ("max_kv_bytes", "max_query_kv_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RequestRejected(f"{name} is {value}; it must be at least 1, or None for no limit")
        if self.max_query_kv_bytes is not None and not self.query:
            raise RequestRejected("max_query_kv_bytes needs the id of the query that it limits; set query")
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise RequestRejected(f"deadline_s is {self.deadline_s}; it must be above 0, or None")


@dataclass
class Timings:
    """Seconds from arrival, by a monotonic clock."""

    queue_s: float = 0.0
    time_to_first_token_s: float = 0.0
    total_s: float = 0.0


@dataclass
class DraftUsage:
    """What drafting saved one request: every accepted token is a step of its row that was not needed."""

    num_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass
class RequestOutput:
    """The answer to one request.

    Attributes:
        finish_reason: ``stop`` (end of turn or a stop string), ``length``, ``abort``, ``deadline`` or ``error``.
        error: why, where ``finish_reason`` is ``error``.
        state_digest: the state that every token was decoded with; empty = the base model.
    """

    request_id: str
    text: str
    token_ids: list[int]
    finish_reason: str
    usage: CallUsage
    timings: Timings = field(default_factory=Timings)
    drafts: DraftUsage = field(default_factory=DraftUsage)
    state_digest: str = ""
    error: str = ""
