"""Help is complete, and needs none of the heavy packages."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import get_args

import pytest

from pss_engine import __version__
from pss_engine.cli import options
from pss_engine.config import CHOICES
from pss_engine.engine import SamplingParams
from pss_engine.models.packing import WEIGHTS
from pss_engine.retrieval.opening import SEARCHES
from pss_engine.session import MODES
from pss_engine.writer import WriterConfig
from tests.cli.conftest import Pss, python

COMMANDS = ["demo", "write", "clue", "ask", "index", "generate", "inspect state", "inspect store", "inspect model"]
COMMANDS += ["doctor", "cache list", "cache clear", "eval ablation", "eval report"]
COMMANDS += [f"state {name}" for name in ("log", "show", "diff", "rollback", "rm", "gc", "export", "import")]
PROBE = """
import contextlib, io, json, sys
from pss_engine.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    code = main(sys.argv[1:])
heavy = {"torch", "transformers", "numpy", "safetensors", "huggingface_hub"} & set(sys.modules)
print(json.dumps({"code": code, "heavy": sorted(heavy)}))
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example_and_takes_json(pss: Pss, command: str) -> None:
    ran = pss(*command.split(), "--help")
    assert ran.code == 0
    assert f"Example: pss {command}" in ran.out
    assert "--json" in ran.out


def test_the_help_names_every_command(pss: Pss) -> None:
    out = pss("--help").out
    assert all(command.split()[0] in out for command in COMMANDS)
    assert pss().out == out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_nothing_heavy(command: str) -> None:
    probed = json.loads(python("-c", PROBE, *command.split(), "--help").stdout)
    assert probed["code"] == 0
    assert probed["heavy"] == []


def test_version(pss: Pss) -> None:
    assert pss("--version").out.strip() == __version__


def test_options_are_those_of_the_python_api() -> None:
    written, config = options.WriterOptions(), WriterConfig()
    assert all(getattr(written, f.name) == getattr(config, f.name) for f in fields(written))
    sampled, params = options.SamplingOptions(), SamplingParams()
    assert {f.name for f in fields(sampled)} == {f.name for f in fields(params)}
    assert all(getattr(sampled, f.name) == getattr(params, f.name) for f in fields(sampled))
    assert get_args(options.Mode) == MODES
    assert get_args(options.Weights) == WEIGHTS
    assert get_args(options.Activations) == CHOICES["activations"]
    assert get_args(get_args(options.Search)[0]) == SEARCHES
