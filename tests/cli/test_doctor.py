"""``pss doctor`` says what runs, and why the rest does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pss_engine.cli import checks
from pss_engine.ops import OPS
from pss_engine.ops.linear import linear
from tests.cli.conftest import Pss


def by_name(document: dict) -> dict:
    return {check["name"]: check for check in document["checks"]}


def test_a_machine_that_passes_these_tests_can_run_the_engine(pss: Pss, model: str) -> None:
    ran = pss("doctor", "--model", model, "--json")
    found = by_name(ran.json)
    assert ran.code == 0
    assert ran.json["can_run"]
    assert found["torch"]["status"] == "ok"
    assert found["model"]["status"] == "ok"
    assert found["store"]["status"] == "ok"
    assert not Path("pss_store").exists()


def test_every_op_is_listed_with_its_backend_and_the_reasons_of_the_others(pss: Pss) -> None:
    found = by_name(pss("doctor", "--device", "cpu", "--json").json)
    for op in OPS:
        row = found[f"op {op.name}"]
        reasons = op.why("cpu")
        assert row["data"]["backend"] == op.backends("cpu")[0]
        assert row["data"]["why_not"] == {backend: reason for backend, reason in reasons.items() if reason}
        assert all(f"{backend}: {reason}" in row["detail"] for backend, reason in reasons.items() if reason)


def test_threads_are_shown_with_their_reason(pss: Pss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = by_name(pss("doctor", "--json").json)["threads"]
    assert found["data"]["why"] == "OMP_NUM_THREADS=1"
    assert found["data"]["affinity"] >= 1
    assert "passive" in found["detail"]


def test_the_formats_of_weights_and_the_run_of_layers_are_shown(pss: Pss) -> None:
    data = by_name(pss("doctor", "--device", "cpu", "--json").json)["weights"]["data"]
    assert data["packed"] == data["fused_layers"] == ("cpp" in linear.backends("cpu"))
    assert not data["packed"] or {"float32", "q4_1", "q6_k"} <= set(data["formats"])


def test_the_cache_is_named(pss: Pss, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSS_CACHE_DIR", str(tmp_path / "kept"))
    data = by_name(pss("doctor", "--json").json)["model cache"]["data"]
    assert data["cache"] == str(tmp_path / "kept")
    assert data["num_models"] == 0
    assert not (tmp_path / "kept").exists()


def test_an_extension_that_was_not_built_is_named_with_its_reason(pss: Pss, monkeypatch: pytest.MonkeyPatch) -> None:
    from pss_engine.errors import BackendUnavailable
    from pss_engine.ops import extension

    def missing() -> None:
        raise BackendUnavailable("pss_engine._C is missing: c++: no such file")

    monkeypatch.setattr(extension, "load_extension", missing)
    monkeypatch.setattr(extension, "build_info", lambda: {"extension": False, "error": "c++: no such file"})
    ran = pss("doctor", "--json")
    assert ran.code == 0
    assert by_name(ran.json)["extension"]["status"] == "note"
    assert by_name(ran.json)["extension"]["detail"].endswith("c++: no such file")


def test_a_model_that_is_not_there_is_a_note(pss: Pss) -> None:
    ran = pss("doctor", "--model", "no-such-model", "--json")
    assert ran.code == 0
    assert by_name(ran.json)["model"]["status"] == "note"


def test_a_needed_package_that_is_missing_is_a_failure(pss: Pss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "NEEDED", ("torch", "no-such-package"))
    ran = pss("doctor")
    assert ran.code == 1
    assert "no-such-package" in ran.out
    assert "cannot run" in ran.out


def test_a_check_that_breaks_is_a_finding(pss: Pss, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> checks.Check:
        raise RuntimeError("driver is gone")

    monkeypatch.setattr(checks, "_extension", broken)
    ran = pss("doctor", "--json")
    assert ran.code == 1
    assert "driver is gone" in by_name(ran.json)["extension"]["detail"]


def test_a_store_that_cannot_be_written_is_a_note(pss: Pss, files: Path) -> None:
    found = by_name(pss("doctor", "--store", files / "history.txt", "--json").json)
    assert found["store"]["status"] == "note"
