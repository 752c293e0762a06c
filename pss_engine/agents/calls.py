"""The calls of one query: counted, timed, charged, and never more than its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pss_engine.agents.endpoint import Call, Completion, Endpoint
from pss_engine.agents.faults import Fault
from pss_engine.agents.prompts import digest
from pss_engine.agents.spans import Spans
from pss_engine.errors import PSSError
from pss_engine.kv import QueryUsage
from pss_engine.metrics import AgentCounters
from pss_engine.models import Message


class BudgetSpent(PSSError):
    """A query that has made all the calls it may make."""


@dataclass(frozen=True)
class CallRecord:
    """What a run keeps of a call; its KV is in the usage of the same place."""

    agent: str
    model: str
    prompt_sha256: str
    text: str
    finish_reason: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class Calls:
    """See the module. ``query``: id under which the ledger accounts for the calls."""

    def __init__(self, query: str, seed: int, most: int, counters: AgentCounters) -> None:
        self.query, self.counters, self.spans = query, counters, Spans()
        self._seed, self._most, self._made = seed, most, 0
        self.usage, self.records = QueryUsage(), list[CallRecord]()

    async def make(
        self,
        agent: str,
        endpoint: Endpoint,
        messages: Sequence[Message],
        max_new_tokens: int,
        session: str | None = None,
        stop: tuple[str, ...] = (),
    ) -> Completion:
        """Raises Fault, or BudgetSpent before a call too many."""
        if self._made >= self._most:
            raise BudgetSpent(f"the query may make {self._most} calls, and {agent} needs another")
        self._made += 1
        self.counters.num_calls += 1
        call = Call(agent, self.query, messages, max_new_tokens, seed=self._seed, session=session, stop=stop)
        named = {
            "gen_ai__agent__name": agent,
            "gen_ai__request__model": endpoint.name,
            "gen_ai__request__max_tokens": max_new_tokens,
            "gen_ai__request__seed": self._seed,
            "gen_ai__conversation__id": self.query,
        }
        with self.spans.span("chat", endpoint.name, **named) as span:
            try:
                done = await endpoint.complete(call)
            except Fault:
                self.counters.num_call_faults += 1
                raise
            span.attributes |= {
                "gen_ai.usage.input_tokens": done.usage.prompt_tokens,
                "gen_ai.usage.output_tokens": done.usage.generated_tokens,
                "gen_ai.response.finish_reasons": [done.finish_reason],
                "pss.kv.peak_bytes": done.usage.kv_peak_bytes,
            }
        self.usage.calls.append(done.usage)
        self.records.append(
            CallRecord(agent, endpoint.name, digest(messages), done.text, done.finish_reason, done.seconds)
        )
        return done
