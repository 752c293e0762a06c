"""A session through the command line: written, looked at, asked."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from pss_engine.state import StateStore
from tests.cli.conftest import FAST, TARGETS, Pss

QUERY = "Rerun the previous configuration."


@pytest.fixture
def place(files: Path, model: str) -> list[object]:
    """Options that name the store and the model."""
    return ["--store", files / "store", "--model", model, "--num-session-layers", 2]


def test_write_stores_a_state_and_says_what_it_is(pss: Pss, files: Path, model: str, tmp_path: Path) -> None:
    ran = pss("write", "heron", files / "history.jsonl", "--store", tmp_path / "s", "--model", model, *FAST, "--json")
    state = StateStore(tmp_path / "s").get("heron")
    assert ran.code == 0
    assert ran.json["digest"] == state.digest
    assert ran.json["num_bytes"] == state.num_bytes
    assert ran.json["max_rank"] == 4
    assert ran.json["meta"]["readout"] == state.meta.readout
    assert ran.json["meta"]["clue"] == TARGETS["clue"]
    assert ran.json["targets_from"] == "history file"
    assert ran.json["seconds"] > 0


@pytest.mark.parametrize(("options", "source"), [([], "words of the history"), (["--clue", "my own clue"], "given")])
def test_write_shows_the_targets_and_where_they_come_from(
    pss: Pss, files: Path, model: str, tmp_path: Path, options: list[str], source: str
) -> None:
    argv = ["write", "heron", files / "history.txt", "--store", tmp_path / "s", "--model", model, *FAST, *options]
    ran = pss(*argv)
    clue = StateStore(tmp_path / "s").get("heron").meta.clue
    assert ran.code == 0
    assert clue
    told = " ".join(ran.out.split())  # a long clue wraps its line
    assert clue in told
    assert source in told
    assert "heron" in ran.err


def test_clue_is_the_text_alone_on_stdout_and_its_cost_on_stderr(pss: Pss, place: list[object]) -> None:
    told = pss("clue", "heron", QUERY, *place, "--max-clue-tokens", 8)
    document = pss("clue", "heron", QUERY, *place, "--max-clue-tokens", 8, "--json").json
    assert told.out.rstrip("\n") == document["clue"]
    assert "peak KV" in told.err
    assert document["usage"]["kv_peak_bytes"] > 0
    assert document["usage"]["calls"][0]["state_bytes"] > 0


@pytest.mark.parametrize("mode", ["clue", "raw", "rrf", "readout"])
def test_ask_answers_in_every_mode(pss: Pss, files: Path, place: list[object], mode: str) -> None:
    limits = ["--top-k", 1, "--max-clue-tokens", 8, "--max-answer-tokens", 8]
    corpus = ["--corpus", files / "corpus.jsonl"]
    answer = pss("ask", "heron", "Rerun heron-lidar-v3 again", *corpus, "--mode", mode, *place, *limits, "--json").json
    assert answer["mode"] == mode
    assert answer["finish_reason"] in ("stop", "length")
    agents = [call["agent"] for call in answer["usage"]["calls"]]
    assert agents == (["clue", "answer"] if mode in ("clue", "rrf") else ["answer"])
    if mode != "clue":
        assert [hit["id"] for hit in answer["passages"]] == ["sheet"]


def test_ask_shows_passages_answer_and_cost(pss: Pss, files: Path, place: list[object]) -> None:
    limits = ["--mode", "raw", "--top-k", 1, "--max-answer-tokens", 8]
    ran = pss("ask", "heron", "Rerun heron-lidar-v3", "--corpus", files / "corpus.jsonl", *place, *limits)
    assert ran.code == 0
    assert "sheet  Run sheet" in ran.out
    assert "answer" in ran.out
    assert "peak KV" in ran.out


def test_generate_decodes_several_prompts_in_one_batch(pss: Pss, model: str) -> None:
    argv = ["--model", model, "--max-new-tokens", 4, "--ignore-eos", "--json"]
    both = pss("generate", "one", "another one", *argv).json
    alone = pss("generate", "another one", *argv).json
    assert [row["prompt"] for row in both["outputs"]] == ["one", "another one"]
    assert both["outputs"][1]["token_ids"] == alone["outputs"][0]["token_ids"]
    assert both["counters"]["num_steps"] < 8
    assert both["counters"]["num_state_tokens"] == 0


def test_generate_reads_stdin_and_plain_text(pss: Pss, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("plain text"))
    options = ["--raw", "--model", model, "--max-new-tokens", 4]
    piped = pss("generate", "-", *options, "--json").json["outputs"][0]
    given = pss("generate", "plain text", *options, "--json").json["outputs"][0]
    assert piped["prompt"] == "plain text"
    assert piped["token_ids"] == given["token_ids"]
    assert piped["usage"]["prompt_tokens"] == len("plain text")


def test_generate_with_a_session_decodes_with_its_state(pss: Pss, place: list[object]) -> None:
    document = pss("generate", "hello", "--session", "heron", *place, "--max-new-tokens", 4, "--json").json
    assert document["outputs"][0]["state_digest"]
    assert document["counters"]["num_state_tokens"] > 0
    assert document["counters"]["num_adapter_calls"] > 0


def test_generate_samples_by_its_seed(pss: Pss, model: str) -> None:
    def text(seed: int) -> str:
        sampling = ["--temperature", 1, "--top-k", 50, "--top-p", 0.9, "--max-new-tokens", 12, "--ignore-eos"]
        return pss("generate", "hello", "--model", model, *sampling, "--seed", seed).out

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_generate_stops_at_a_stop_string(pss: Pss, model: str) -> None:
    options = ["--model", model, "--max-new-tokens", 24, "--ignore-eos", "--raw", "--json"]
    whole = pss("generate", "abc", *options).json["outputs"][0]["text"]
    stop = next(char for char in whole[1:] if char.isprintable() and char != whole[0])
    cut = pss("generate", "abc", *options, "--stop", stop).json["outputs"][0]
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["finish_reason"] == "stop"
