"""Peers that are not here, or do not run here, are left out in a line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import peers
from bench.serving import PeerFailed
from pss_engine.models.source import ModelSource


def test_a_peer_that_cannot_run_is_skipped_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Server:
        def __init__(self, *_: object) -> None:
            raise PeerFailed("its process ended with exit code -4")

    monkeypatch.setattr(peers, "find_peer", lambda name: SimpleNamespace(NAME=name, Server=Server))
    source = ModelSource("a model", "gguf", Path("model.gguf"))
    assert list(peers.start_servers(["llama_cpp"], source, {}, 8)) == []
    assert "peer llama_cpp is skipped: its process ended with exit code -4" in capsys.readouterr().err


def test_an_absent_peer_is_skipped_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.find_peer("no_such_engine") is None
    assert "peer no_such_engine is skipped" in capsys.readouterr().err
