"""Requests to tokens: scheduling, batching, decoding."""

from pss_engine.config import EngineConfig
from pss_engine.engine.async_engine import AsyncEngine, TextDelta
from pss_engine.engine.engine import Engine
from pss_engine.engine.request import DraftUsage, Request, RequestOutput, SamplingParams, Timings
from pss_engine.engine.stages import Staged, run_stages

__all__ = [
    "AsyncEngine",
    "DraftUsage",
    "Engine",
    "EngineConfig",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "Staged",
    "TextDelta",
    "Timings",
    "run_stages",
]
