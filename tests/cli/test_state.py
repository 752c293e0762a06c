"""pss state: versions, differences, going back, out, in and away."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pss_engine.state import StateStore, load_adapter
from tests.cli.conftest import FAST, Pss


@pytest.fixture
def place(pss: Pss, files: Path, model: str, tmp_path: Path) -> list[object]:
    """A store whose session heron has two versions."""
    shutil.copytree(files / "store", tmp_path / "store")
    pss("write", "heron", files / "history.jsonl", "--store", "store", "--model", model, *FAST, "--seed", 7)
    return ["--store", tmp_path / "store"]


def test_log_show_diff_and_rollback(pss: Pss, place: list[object]) -> None:
    log = pss("state", "log", "heron", *place, "--json").json
    old, new = (version["digest"] for version in log["versions"])
    assert log["head"] == new and new[:16] in pss("state", "log", "heron", *place).out
    assert pss("state", "show", "heron", *place, "--json").json["digest"] == new
    assert pss("state", "show", "heron", "--version", old[:8], *place, "--json").json["digest"] == old
    found = pss("state", "diff", "heron", *place, "--json").json
    assert found["changed"]["seed"] == [91, 7] and set(found["moved_by_layer"]) == {"2", "3"}
    assert "seed" in pss("state", "diff", "heron", old[:8], new[:8], *place).out
    assert pss("state", "rollback", "heron", *place, "--json").json == {"session": "heron", "was": new, "head": old}
    assert f"{old[:16]} -> {new[:16]}" in pss("state", "rollback", "heron", "--to", new[:8], *place).out


def test_gc_and_rm(pss: Pss, place: list[object]) -> None:
    assert pss("state", "gc", *place, "--json").json == {"num_removed": 0}
    assert "1 objects removed" in pss("state", "gc", "--keep-versions", 1, *place).out
    proof = pss("state", "rm", "heron", *place, "--json").json
    assert proof["left"] == [] and len(proof["erased"]) == 4
    assert StateStore(str(place[1])).sessions() == []


def test_out_to_peft_and_in_again(pss: Pss, place: list[object], tmp_path: Path) -> None:
    digest = pss("state", "export", "heron", "adapter", *place, "--json").json["digest"]
    assert load_adapter(tmp_path / "adapter").digest == digest
    (tmp_path / "adapter" / "pss_state.json").unlink()  # as a stranger's adapter comes
    assert pss("state", "import", "egret", "adapter", *place).code == 0
    assert StateStore(str(place[1])).get("egret").modules == StateStore(str(place[1])).get("heron").modules


@pytest.mark.parametrize(
    "command",
    [
        ("log", "nobody"),
        ("show", "heron", "--version", "zz"),
        ("diff", "heron", "zz"),
        ("rollback", "heron", "--to", "zz"),
        ("rm", "nobody"),
    ],
)
def test_what_is_not_there_is_said_in_a_line(pss: Pss, place: list[object], command: tuple[str, ...]) -> None:
    ran = pss("state", *command, *place)
    assert ran.code == 2 and len(ran.err.splitlines()) == 1


def test_a_tenant_with_a_key(
    pss: Pss, files: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography", reason="cryptography is not installed (see the encryption extra)")
    (tmp_path / "key").write_text("ab" * 32)
    options = ["--store", "s", "--tenant", "acme", "--key-file", "key"]
    argv = ["write", "heron", files / "history.jsonl", "--model", model, *FAST, "--json"]
    digest = pss(*argv, *options).json["digest"]
    assert pss("state", "show", "heron", *options, "--json").json["digest"] == digest
    run = ["--model", model, "--num-session-layers", 2, *options]
    assert pss("clue", "heron", "Rerun it.", "--max-clue-tokens", 4, *run).code == 0
    said = pss("generate", "Rerun it.", "--session", "heron", "--max-new-tokens", 2, *run, "--json").json
    assert said["outputs"][0]["state_digest"] == digest
    assert pss("inspect", "state", "heron", *options, "--json").json["digest"] == digest
    listed = pss("inspect", "store", "s", *options[2:], "--json").json
    assert [row["digest"] for row in listed["sessions"]] == [digest]
    refused = pss("state", "show", "heron", "--store", "s", "--tenant", "acme")
    assert refused.code == 2 and "is sealed" in refused.err
    assert pss("state", "log", "heron", "--store", "s").code == 2  # nobody's part has no such session
    monkeypatch.setenv("PSS_STATE_KEY", "ab" * 32)
    assert pss("state", "show", "heron", "--store", "s", "--tenant", "acme").code == 0
