"""The agents over one engine, with everything in memory: what both parts of the suite measure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pss_engine.agents import AGENTS, AgentService, Clues, EngineEndpoint, Limits, Model
from pss_engine.agents.memory import EvidencePool, MemoryKV, TraceMemory
from pss_engine.engine import AsyncEngine, Engine
from pss_engine.metrics import AgentCounters
from pss_engine.retrieval import Encoder, Passage
from pss_engine.retrieval.stores import MemoryStore


@dataclass(frozen=True)
class Agents:
    """A service and the engine that runs for it."""

    service: AgentService
    engine: Engine
    running: AsyncEngine

    @classmethod
    def over(cls, engine: Engine, encoder: Encoder, passages: Iterable[Passage], limits: Limits) -> Agents:
        running, storage, counters = AsyncEngine(engine), MemoryKV(), AgentCounters()
        endpoint = EngineEndpoint(running, engine.model.name)
        service = AgentService(
            {agent: Model(endpoint) for agent in AGENTS},
            EvidencePool(MemoryStore(encoder.dim), encoder, passages, counters),
            TraceMemory(MemoryStore(encoder.dim), storage, encoder, counters),
            storage,
            counters,
            limits,
            Clues(endpoint),
        )
        return cls(service, engine, running)

    def close(self) -> None:
        """Ends the engine; its books must balance."""
        self.running.close()
        self.engine.check()
