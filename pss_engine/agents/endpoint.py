"""What an agent's model is: anything that completes a chat and says what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pss_engine.kv import CallUsage
from pss_engine.models import Message


@dataclass(frozen=True)
class Call:
    """One call of an agent.

    Attributes:
        query: id of the user's query; its calls are accounted together and share no prefix with those of others, so
            that no arm finds what another has left in a cache.
        stop: texts that end the answer; they are not part of it.
        session: the state that the call is decoded with; only in-process endpoints have any.
    """

    agent: str
    query: str
    messages: Sequence[Message]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    session: str | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    """What came back, and what it held in KV."""

    text: str
    finish_reason: str
    usage: CallUsage
    seconds: float


class Endpoint(Protocol):
    """The model behind an agent.

    Attributes:
        name: of the model, for records and spans.
    """

    name: str

    async def complete(self, call: Call) -> Completion:
        """Raises Fault; an empty text is an answer like any other."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a run record says of the endpoint."""
        ...
