"""The stamp of a run tells what it ran on, and not whose machine it was."""

from __future__ import annotations

import json
import platform

import pytest

from bench import environment
from bench.environment import ROOT


def test_a_stamp_has_the_device_the_versions_and_an_id_of_its_own() -> None:
    first, second = (environment.stamp("lora", ["lora", "--quick"]) for _ in range(2))
    assert first.run != second.run
    assert first.command == "python -m bench lora --quick"
    assert {"name", "cores", "isa", "memory", "driver"} <= set(first.devices["cpu"])
    assert first.devices["cpu"]["memory"] > 2**20
    assert {"pss_engine", "python", "torch"} <= set(first.versions)


def test_a_stamp_names_no_host_and_no_folder() -> None:
    stamp = environment.stamp("lora", ["lora", "--out", str(ROOT / "bench" / "x.jsonl"), "--data", str(ROOT.parent)])
    assert stamp.command == "python -m bench lora --out bench/x.jsonl --data .."
    assert environment.command(["kv", "--data", "/home/someone/else/data"]) == "python -m bench kv --data .../data"
    text = json.dumps([stamp.devices, stamp.versions, stamp.commit, stamp.command])
    assert str(ROOT) not in text
    assert platform.node() not in text


def test_the_commit_says_where_the_tree_differs_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"rev-parse": "", "status": ""}
    monkeypatch.setattr(environment, "_output", lambda *arguments: answers[arguments[1]])
    assert environment.commit() == "none"
    answers["rev-parse"] = "abc"
    assert environment.commit() == "abc"
    answers["status"] = " M README.md"
    assert environment.commit() == "abc+dirty"
