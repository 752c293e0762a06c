"""``pss cache`` lists and clears; ``--no-cache``, ``--weights`` and ``--activations`` reach the load and the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pss_engine.models import loader
from tests.cli.conftest import Pss

ASK = ["generate", "hi", "--raw", "--max-new-tokens", "2"]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PSS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept(pss: Pss) -> list[dict[str, Any]]:
    models = pss("cache", "list", "--json").json["models"]
    assert isinstance(models, list)
    return models


def test_a_run_keeps_the_model_and_clear_removes_it(pss: Pss, model: str, root: Path) -> None:
    assert kept(pss) == []
    assert pss(*ASK, "--model", model, "--weights", "int8").code == 0
    (row,) = kept(pss)
    assert (row["model"], row["weights"]) == (model, "int8")
    assert "1 models" in pss("cache", "list").out
    ran = pss("cache", "clear", "--json")
    assert (ran.json["num_models"], ran.json["num_bytes"]) == (1, row["num_bytes"])
    assert kept(pss) == []
    assert list(root.iterdir()) == []


def test_a_damaged_entry_is_listed_as_such(pss: Pss, model: str, root: Path) -> None:
    pss(*ASK, "--model", model)
    (info,) = root.glob("models/*/model.json")
    info.write_text("{")
    (row,) = kept(pss)
    assert "model.json" in row["error"]
    assert "damaged" in pss("cache", "list").out


def test_no_cache_keeps_nothing(pss: Pss, model: str, root: Path) -> None:
    assert pss(*ASK, "--model", model, "--no-cache").code == 0
    assert not root.exists()


def test_the_second_run_says_the_same(pss: Pss, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pss(*ASK, "--model", model, "--json").json["outputs"][0]
    monkeypatch.setattr(loader, "_from_files", lambda *_: pytest.fail("the files are read again"))
    second = pss(*ASK, "--model", model, "--json").json["outputs"][0]
    assert first["token_ids"] == second["token_ids"]


def test_int8_activations_need_quantised_weights(pss: Pss, model: str) -> None:
    ran = pss(*ASK, "--model", model, "--activations", "int8")
    assert ran.code == 2
    assert "need quantised weights" in ran.err
    assert pss(*ASK, "--model", model, "--activations", "int8", "--weights", "int8").code == 0


@pytest.mark.parametrize("option", [("--weights", "int3"), ("--activations", "int4")])
def test_an_unknown_choice_names_the_others(pss: Pss, model: str, option: tuple[str, str]) -> None:
    ran = pss(*ASK, "--model", model, *option)
    assert ran.code == 2
    assert "int8" in ran.err


def test_a_limit_that_is_no_number_is_refused(pss: Pss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSS_CACHE_BYTES", "plenty")
    ran = pss("cache", "list")
    assert ran.code == 2
    assert "PSS_CACHE_BYTES" in ran.err
