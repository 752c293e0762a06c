"""What the tests of the command line share: a runner, a tiny model, a history, a corpus, a store with one session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pss_engine.cli import main
from tests.tiny import tiny_model_folder

ROOT = Path(__file__).resolve().parents[2]
TURNS = [
    {"role": "user", "content": "We try configuration heron-lidar-v3 on route B now; heron-stereo-v2 is archived."},
    {"role": "assistant", "content": "Noted: heron-lidar-v3, checkpoint egret-12, route B."},
]
TARGETS = {"clue": "heron-lidar-v3 egret-12", "negative_clue": "heron-stereo-v2 egret-9"}
PASSAGES = [
    {"id": "sheet", "title": "Run sheet", "text": "heron-lidar-v3 runs from egret-12."},
    {"id": "soup", "title": "Soup", "text": "Leek soup on Friday."},
]
FAST = ["--rank", "4", "--readout-steps", "3", "--min-lm-steps", "2", "--num-session-layers", "2"]


@dataclass
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


Pss = Callable[..., Ran]


@pytest.fixture
def pss(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pss:
    """Run a command in this process, in an empty folder."""
    for name in ("PSS_STORE", "PSS_MODEL", "PSS_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*argv: object) -> Ran:
        capfd.readouterr()
        code = main([str(arg) for arg in argv])
        return Ran(code, *capfd.readouterr())

    return run


def python(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter on the checkout, as a shell would."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, env=environment)


@pytest.fixture(scope="session")
def model() -> str:
    return str(tiny_model_folder("llama"))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with history.jsonl, history.txt, corpus.jsonl and a store that holds the session ``heron``."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "history.jsonl").write_text("\n".join(json.dumps(row) for row in [TARGETS, *TURNS]) + "\n")
    (folder / "history.txt").write_text("\n".join(turn["content"] for turn in TURNS))
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in PASSAGES) + "\n")
    argv = ["write", "heron", folder / "history.jsonl", "--store", folder / "store"]
    assert main([*map(str, argv), "--model", str(tiny_model_folder("llama")), *FAST]) == 0
    return folder
