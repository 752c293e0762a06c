"""The tiers below the calls: Communication Units (2), evidence and traces (3). Tier 1 is the KV of the calls."""

from __future__ import annotations

from pss_engine.agents.memory.evidence import EvidencePool, Reranker, SentenceReranker, cosines
from pss_engine.agents.memory.key_value import KeyValueStore, StoreDown
from pss_engine.agents.memory.local import MemoryKV, SqliteKV
from pss_engine.agents.memory.redis_kv import RedisKV
from pss_engine.agents.memory.traces import Trace, TraceMemory
from pss_engine.agents.memory.units import Units

__all__ = [
    "EvidencePool",
    "KeyValueStore",
    "MemoryKV",
    "RedisKV",
    "Reranker",
    "SentenceReranker",
    "SqliteKV",
    "StoreDown",
    "Trace",
    "TraceMemory",
    "Units",
    "cosines",
]
