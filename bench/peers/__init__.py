"""Adapters of what we are measured against, one a module, named after the peer and found by import."""

from __future__ import annotations

import importlib
from types import ModuleType

from bench.environment import say


def find_peer(name: str) -> ModuleType | None:
    """The module ``bench.peers.NAME``; None, said on stderr, where what it needs is not installed."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ImportError as error:
        say(f"bench: peer {name} is skipped: {error}")
        return None
