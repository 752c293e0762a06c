"""Adapters of what we are measured against, one a module, named after the peer and found by import."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from bench.environment import say
from bench.serving import PeerFailed, Server
from pss_engine.models.source import ModelSource


def find_peer(name: str) -> ModuleType | None:
    """The module ``bench.peers.NAME``; None, said on stderr, where what it needs is not installed."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ImportError as error:
        say(f"bench: peer {name} is skipped: {error}")
        return None


def start_servers(
    names: Sequence[str], source: ModelSource, adapters: Mapping[str, Path], max_tokens: int
) -> Iterator[tuple[ModuleType, Server]]:
    """The peers of these names that run here, each started as it is asked for; why another does not is said."""
    for peer in filter(None, map(find_peer, names)):
        try:
            yield peer, peer.Server(source, adapters, max_tokens)
        except PeerFailed as error:
            say(f"bench: peer {peer.NAME} is skipped: {error}")
