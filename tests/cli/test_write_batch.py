"""pss write: many sessions from one file, what is stored already is left, a single file needs no name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pss_engine.state import StateStore
from tests.cli.conftest import FAST, TARGETS, TURNS, Pss


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(turn) for turn in TURNS))
    lines = [{"session": "a", "turns": TURNS, "targets": TARGETS}, {"session": "b", "history": "b.jsonl"}]
    (tmp_path / "sessions.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return tmp_path / "sessions.jsonl"


def test_a_batch_is_written_once(pss: Pss, batch: Path, model: str) -> None:
    argv = ["write", "--batch", batch, "--store", "s", "--model", model, *FAST, "--json"]
    first = pss(*argv).json
    assert (first["num_written"], first["num_stored_before"], first["num_failed"]) == (2, 0, 0)
    assert [row["session"] for row in first["sessions"]] == ["a", "b"] == StateStore("s").sessions()
    assert [row["targets_from"] for row in first["sessions"]] == ["given", "words of the history"]
    again = pss(*argv).json
    assert (again["num_written"], again["num_stored_before"]) == (0, 2)
    assert [row["digest"] for row in again["sessions"]] == [row["digest"] for row in first["sessions"]]
    other = pss(*argv, "--seed", 5).json
    assert other["num_written"] == 2


def test_a_batch_shows_a_line_for_each_session(pss: Pss, batch: Path, model: str) -> None:
    ran = pss("write", "--batch", batch, "--store", "s", "--model", model, *FAST)
    assert ran.code == 0 and "2 written" in ran.out and "FLAGGED" in ran.out
    assert "2/2 " in ran.err


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ("", "is empty"),
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is not a JSON object"),
        ('{"session": "a"}', "line 1: is no session"),
        ('{"session": "a", "turns": [], "gold": 1}', "'gold' is unknown"),
        ('{"session": "a", "turns": 3}', "'turns' must be a list"),
        ('{"session": "a", "turns": []}', "is empty"),
        ('{"session": "A", "turns": []}', "session id"),
        ('{"session": "a", "history": "missing.jsonl"}', "cannot be read"),
    ],
)
def test_a_line_that_is_no_session(pss: Pss, model: str, tmp_path: Path, lines: str, part: str) -> None:
    (tmp_path / "bad.jsonl").write_text(lines)
    ran = pss("write", "--batch", "bad.jsonl", "--store", "s", "--model", model, *FAST)
    assert ran.code == 2 and part in ran.err and not Path("s").exists()


def test_a_session_that_comes_twice(pss: Pss, batch: Path, model: str) -> None:
    batch.write_text(batch.read_text() * 2)
    ran = pss("write", "--batch", batch, "--store", "s", "--model", model, *FAST)
    assert ran.code == 2 and "line 3: session a comes twice" in ran.err


def test_a_session_that_fails_leaves_the_others(pss: Pss, batch: Path, model: str) -> None:
    argv = ["write", "--batch", batch, "--store", "s", "--model", model, *FAST]
    ran = pss(*argv, "--max-state-bytes", 10, "--json")
    assert ran.code == 1 and ran.json["num_failed"] == 2
    assert all("state budget" in row["error"] for row in ran.json["sessions"])


def test_a_history_alone_is_enough(pss: Pss, model: str, tmp_path: Path) -> None:
    (tmp_path / "My chat.jsonl").write_text("\n".join(json.dumps(turn) for turn in TURNS))
    ran = pss("write", "My chat.jsonl", "--store", "s", "--model", model, *FAST, "--json")
    assert ran.code == 0 and StateStore("s").sessions() == ["my-chat"]
    assert "egret-12" in ran.json["meta"]["clue"]


def test_targets_are_shown_without_weights_and_can_be_put_into_the_file(pss: Pss, model: str, tmp_path: Path) -> None:
    chat = "\n".join(json.dumps(turn) for turn in TURNS)
    (tmp_path / "chat.jsonl").write_text(chat)
    shown = pss("write", "chat.jsonl", "--show-targets", "--model", model)
    assert "from the words of the history" in shown.err
    (tmp_path / "edited.jsonl").write_text(shown.out + chat)
    again = pss("write", "edited.jsonl", "--show-targets", "--model", model, "--json").json
    assert again == {**json.loads(shown.out), "source": "history file"}
    written = pss("write", "chat.jsonl", "--store", "s", "--model", model, *FAST, "--json").json
    assert written["meta"]["clue"] == json.loads(shown.out)["clue"]


def test_a_session_goes_on_with_new_turns(pss: Pss, files: Path, model: str, tmp_path: Path) -> None:
    more = [{"role": "user", "content": "From now on heron-sonar-v4 on route C."}]
    (tmp_path / "more.jsonl").write_text("\n".join(json.dumps(turn) for turn in more))
    argv = ["--store", "s", "--model", model, *FAST, "--json"]
    assert pss("write", "heron", "more.jsonl", "--continue", *argv).json["error"]["type"] == "SessionNotFound"
    first = pss("write", "heron", files / "history.jsonl", *argv).json
    second = pss("write", "heron", "more.jsonl", "--continue", *argv).json
    assert second["meta"]["parent"] == first["digest"] != second["digest"]
    assert second["meta"]["negative_clue"] == TARGETS["clue"]
    assert "heron-sonar-v4" in second["meta"]["clue"]
