"""Requests to tokens: scheduling, batching, decoding."""

from pss_engine.config import EngineConfig
from pss_engine.engine.engine import Engine
from pss_engine.engine.request import Request, RequestOutput, SamplingParams, Timings

__all__ = ["Engine", "EngineConfig", "Request", "RequestOutput", "SamplingParams", "Timings"]
