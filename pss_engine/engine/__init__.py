"""Requests to tokens: scheduling, batching, decoding."""

from pss_engine.config import EngineConfig
from pss_engine.engine.async_engine import AsyncEngine, TextDelta
from pss_engine.engine.engine import Engine
from pss_engine.engine.request import DraftUsage, Request, RequestOutput, SamplingParams, Timings

__all__ = [
    "AsyncEngine",
    "DraftUsage",
    "Engine",
    "EngineConfig",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "TextDelta",
    "Timings",
]
