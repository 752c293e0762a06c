"""An endpoint whose replies a test decides, and a service over it: for what the controller does with any reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pss_engine.agents import AGENTS, AgentService, Call, Completion, Fault, Limits, Model
from pss_engine.agents.memory import EvidencePool, KeyValueStore, MemoryKV, TraceMemory
from pss_engine.kv import CallUsage
from pss_engine.metrics import AgentCounters
from pss_engine.retrieval import Passage
from pss_engine.retrieval.stores import MemoryStore
from tests.retrieval.encoders import tiny_encoder

BYTES = 10
PASSAGES = (
    Passage("ada", "Ada", "Ada built the Heron. She lived in Brest."),
    Passage("heron", "Heron", "The Heron is a boat. It lies in Brest."),
    Passage("soup", "Soup", "Leek soup on Friday."),
)
GOOD = {
    "decomposer": "Which boat did Ada build?\nWhere does #1 lie?",
    "retriever": "Heron boat",
    "reasoner": "The Heron.",
    "critic": "0.9 accept",
    "synthesiser": "Brest",
    "answer_critic": "0.8",
}
Reply = str | Exception
Script = Callable[[Call, int], Reply]


class Scripted:
    """Replies by ``script(call, how many calls of that agent came before)``; a reply that is an error is raised."""

    name = "scripted"

    def __init__(self, script: Script) -> None:
        self._script = script
        self.calls: list[Call] = []

    async def complete(self, call: Call) -> Completion:
        before = sum(other.agent == call.agent for other in self.calls)
        self.calls.append(call)
        await asyncio.sleep(0)  # as any endpoint, it lets others run while it waits
        reply = self._script(call, before)
        if isinstance(reply, Exception):
            raise reply
        prompt = sum(len(message["content"]) for message in call.messages)
        tokens = prompt + len(reply)
        usage = CallUsage(
            f"call-{len(self.calls)}",
            call.agent,
            call.query,
            prompt_tokens=prompt,
            generated_tokens=len(reply),
            max_new_tokens=call.max_new_tokens,
            kv_bytes_per_token=BYTES,
            kv_declared_bytes=(prompt + call.max_new_tokens) * BYTES,
            kv_peak_tokens=tokens,
            kv_peak_bytes=tokens * BYTES,
        )
        return Completion(reply, "stop", usage, 0.0)

    def describe(self) -> dict[str, Any]:
        return {"kind": "scripted"}

    def agents(self) -> list[str]:
        return [call.agent for call in self.calls]


def always(**replies: Reply | Sequence[Reply]) -> Script:
    """Good replies but for the agents named here; of a list the last one goes on."""
    said = {**GOOD, **replies}

    def script(call: Call, before: int) -> Reply:
        reply = said[call.agent]
        return reply if isinstance(reply, (str, Exception)) else reply[min(before, len(reply) - 1)]

    return script


def fault(cause: str) -> Fault:
    return Fault(cause, f"the endpoint met {cause}")


def service_of(endpoint: Any, units: KeyValueStore | None = None, **limits: Any) -> AgentService:
    """A service over the three passages, every agent on one endpoint."""
    counters, encoder = AgentCounters(), tiny_encoder()
    storage = units or MemoryKV()
    return AgentService(
        {agent: Model(endpoint) for agent in AGENTS},
        EvidencePool(MemoryStore(encoder.dim), encoder, PASSAGES, counters),
        TraceMemory(MemoryStore(encoder.dim), storage, encoder, counters),
        storage,
        counters,
        Limits(**limits),
    )
