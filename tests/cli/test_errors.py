"""Bad input: one line that starts with ``pss:``, exit code 2, and nothing is changed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pss_engine.cli import main
from pss_engine.errors import SessionNotFound
from pss_engine.session import SessionRAG
from pss_engine.state import StateStore
from tests.cli.conftest import FAST, ROOT, Pss, Ran
from tests.tiny import tiny_model_folder


def refused(ran: Ran, *parts: str) -> None:
    assert ran.code == 2
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert lines[-1].startswith("pss: ")
    assert "Traceback" not in ran.err
    for part in parts:
        assert part in lines[-1]


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["asks", "heron"], "asks"),
        (["clue", "heron"], "QUERY"),
        (["clue", "heron", "q", "--colour", "red"], "--colour"),
        (["ask", "heron", "q"], "--corpus"),
        (["ask", "heron", "q", "--corpus", "c", "--mode", "guess"], "readout"),
        (["write", "heron", "h.jsonl", "--rank", "many"], "many"),
        (["doctor", "--device", "abacus"], "cuda"),
    ],
)
def test_a_command_line_that_makes_no_sense(pss: Pss, argv: list[str], part: str) -> None:
    refused(pss(*argv), part)


@pytest.mark.parametrize("command", ["generate hello", "inspect model"])
def test_a_missing_model(pss: Pss, command: str) -> None:
    refused(pss(*command.split(), *(["--model"] if "generate" in command else []), "no-such-model"), "no-such-model")


def test_a_truncated_model(pss: Pss, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model_folder("llama"), tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(pss("generate", "hello", "--model", folder), "model.safetensors")


@pytest.mark.parametrize(
    ("content", "part"), [(None, "cannot be read"), ("", "empty"), ("{", "line 1"), ('{"a": 1}', "turn 1")]
)
def test_a_history_that_is_none(pss: Pss, model: str, tmp_path: Path, content: str | None, part: str) -> None:
    history = tmp_path / "history.jsonl"
    if content is not None:
        history.write_text(content)
    refused(pss("write", "heron", history, "--model", model), "history", part)
    assert not Path("pss_store").exists()


@pytest.mark.parametrize("session", ["../heron", "Heron", ""])
def test_a_session_id_that_cannot_name_a_folder(pss: Pss, files: Path, model: str, session: str) -> None:
    refused(pss("write", session, files / "history.jsonl", "--model", model), "session id")


def test_a_negative_clue_alone(pss: Pss, files: Path, model: str) -> None:
    refused(pss("write", "heron", files / "history.txt", "--model", model, "--negative-clue", "old"), "--clue")


@pytest.mark.parametrize(
    "argv",
    [
        ["clue", "egret", "q"],
        ["ask", "egret", "q"],
        ["generate", "q", "--session", "egret"],
        ["inspect", "state", "egret"],
    ],
)
def test_an_unknown_session_is_never_answered_by_the_base_model(
    pss: Pss, files: Path, model: str, argv: list[str]
) -> None:
    more = ["--corpus", files / "corpus.jsonl"] if argv[0] == "ask" else []
    more += [] if argv[0] == "inspect" else ["--model", model]
    refused(pss(*argv, "--store", files / "store", *more), "egret", "heron")


@pytest.mark.parametrize(("content", "part"), [(None, "no such file"), ("", "empty"), ('{"id": "a"}\n', "line 1")])
def test_a_corpus_that_is_none(pss: Pss, files: Path, tmp_path: Path, content: str | None, part: str) -> None:
    corpus = tmp_path / "corpus.jsonl"
    if content is not None:
        corpus.write_text(content)
    argv = ["ask", "heron", "q", "--store", files / "store", "--model", "never-loaded", "--corpus", corpus]
    refused(pss(*argv), "corpus", part)


def test_a_query_longer_than_the_context(pss: Pss, files: Path, model: str) -> None:
    argv = ["clue", "heron", "again " * 200, "--store", files / "store", "--model", model, "--num-session-layers", "2"]
    refused(pss(*argv), "512")


def test_a_state_of_another_model(pss: Pss, files: Path) -> None:
    other = tiny_model_folder("qwen2")
    argv = ["clue", "heron", "q", "--store", files / "store", "--model", other, "--num-session-layers", "2"]
    refused(pss(*argv), "written with model")


def test_a_state_below_the_cut(pss: Pss, files: Path, model: str) -> None:
    argv = ["clue", "heron", "q", "--store", files / "store", "--model", model, "--num-session-layers", "1"]
    refused(pss(*argv), "layer 2", "session layers 3..3")


@pytest.mark.parametrize(
    "option", [["--temperature", "-1"], ["--top-p", "0"], ["--max-new-tokens", "0"], ["--threads", "-2"]]
)
def test_a_number_out_of_range(pss: Pss, model: str, option: list[str]) -> None:
    refused(pss("generate", "hello", "--model", model, *option), option[0].strip("-").replace("-", "_"), option[1])


def test_an_empty_prompt(pss: Pss, model: str) -> None:
    refused(pss("generate", "hello", " ", "--model", model), "prompt 2 is empty")
    refused(pss("generate", "--model", model), "no prompt")


def test_a_device_that_is_not_there(pss: Pss, model: str) -> None:
    refused(pss("generate", "hello", "--model", model, "--device", "abacus"), "abacus", "choices")


def test_a_store_that_is_a_file(pss: Pss, files: Path) -> None:
    refused(pss("inspect", "store", files / "history.txt"), "not a folder")
    refused(pss("inspect", "store", files / "nowhere"), "no such folder")


def test_json_errors_are_on_stdout_for_programs(pss: Pss, files: Path) -> None:
    ran = pss("inspect", "state", "egret", "--store", files / "store", "--json")
    assert ran.code == 2
    assert ran.json["error"]["type"] == "SessionNotFound"
    assert ran.err.splitlines()[-1] == f"pss: {ran.json['error']['message']}"


def test_debug_shows_where_an_error_comes_from(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSS_DEBUG", "1")
    with pytest.raises(SessionNotFound):
        main(["inspect", "state", "egret", "--store", str(files / "store")])


def test_a_bug_is_one_line_too(pss: Pss, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateStore, "sessions", lambda self: 1 // 0)
    ran = pss("inspect", "state", "heron", "--store", files / "store")
    assert ran.code == 1
    assert ran.err.startswith("pss: internal error: ZeroDivisionError")


@pytest.mark.parametrize(
    ("stored", "kept"),
    [(True, "session heron keeps the state it had"), (False, "session heron still has no state")],
)
def test_ctrl_c_says_what_is_kept(
    pss: Pss, files: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool, kept: str
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    store = shutil.copytree(files / "store", tmp_path / "store") if stored else tmp_path / "store"
    before = StateStore(store).get("heron").digest if stored else ""
    monkeypatch.setattr(SessionRAG, "write", interrupted)
    ran = pss("write", "heron", files / "history.jsonl", "--store", store, "--model", model, *FAST)
    assert ran.code == 130
    assert ran.err.splitlines()[-1].startswith(f"pss: interrupted; {kept}")
    assert not stored or StateStore(store).get("heron").digest == before


def test_ctrl_c_while_a_state_is_written_leaves_no_traceback(files: Path, model: str, tmp_path: Path) -> None:
    argv = ["write", "heron", str(files / "history.jsonl"), "--store", str(tmp_path / "s"), "--model", model]
    argv += ["--rank", "4", "--readout-steps", "1000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pss_engine.cli", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        # tests that run in a shell's background would hand down that it is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr
    while not process.stderr.readline().startswith("loaded"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.splitlines() == ["pss: interrupted; session heron still has no state"]
    assert out == ""
    assert StateStore(tmp_path / "s").sessions() == []


def test_a_reader_that_goes_away_is_no_error(files: Path) -> None:
    argv = [sys.executable, "-m", "pss_engine.cli", "inspect", "store", str(files / "store"), "--json"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=120) == 141


def test_json_stays_one_document_where_names_hold_odd_characters(pss: Pss, tmp_path: Path) -> None:
    ran = pss("inspect", "store", tmp_path / "tab\t“store”", "--json")
    assert json.loads(ran.out)["error"]["type"] == "ConfigError"
