"""Inference engine for session states: long sessions compiled into small LoRAs, switched on per row of a batch.

Public names are imported at their first use, so that ``import pss_engine`` stays fast and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pss_engine.errors import (
    BackendUnavailable,
    CapacityError,
    ConfigError,
    PSSError,
    RequestRejected,
    SessionNotFound,
    StateFormatError,
)

if TYPE_CHECKING:
    from pss_engine.engine import AsyncEngine, Engine, EngineConfig, Request, RequestOutput, SamplingParams
    from pss_engine.models import load_model
    from pss_engine.retrieval import Corpus, Passage
    from pss_engine.session import SessionRAG
    from pss_engine.state import SessionState, StateStore
    from pss_engine.writer import SessionTargets, Writer, WriterConfig

__version__ = "0.1.0"

_HOMES = {
    "Corpus": "retrieval",
    "AsyncEngine": "engine",
    "Engine": "engine",
    "EngineConfig": "engine",
    "Passage": "retrieval",
    "Request": "engine",
    "RequestOutput": "engine",
    "SamplingParams": "engine",
    "SessionRAG": "session",
    "SessionState": "state",
    "SessionTargets": "writer",
    "StateStore": "state",
    "Writer": "writer",
    "WriterConfig": "writer",
    "load_model": "models",
}

__all__ = [
    "AsyncEngine",
    "BackendUnavailable",
    "CapacityError",
    "ConfigError",
    "Corpus",
    "Engine",
    "EngineConfig",
    "PSSError",
    "Passage",
    "Request",
    "RequestOutput",
    "RequestRejected",
    "SamplingParams",
    "SessionNotFound",
    "SessionRAG",
    "SessionState",
    "SessionTargets",
    "StateFormatError",
    "StateStore",
    "Writer",
    "WriterConfig",
    "__version__",
    "load_model",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
