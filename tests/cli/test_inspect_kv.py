"""``pss inspect kv`` counts from a config alone; ``pss inspect timeline`` shows what a run wrote."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from transformers import AutoConfig

from tests.cli.conftest import Pss
from tests.tiny import NUM_SESSION_LAYERS, tiny_model


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    """The config of the paper's hybrid as it is published: the text model inside that of the whole."""
    path = tmp_path / "config.json"
    AutoConfig.for_model("qwen3_5_moe").to_json_file(path, use_diff=False)
    return path


def test_the_papers_hybrid_without_weights(pss: Pss, hybrid: Path) -> None:
    options = ("--context", 4096, "--batch", 4, "--kv-dtype", "fp8", "--memory-bytes", 2**30)
    for name in (hybrid, hybrid.parent):
        found = pss("inspect", "kv", name, *options, "--json").json
        assert found["kv_bytes_per_token"]["all"] == 10_240
        assert found["sequence"]["kv_bytes"] == 4096 * 10_240
        assert found["sequence"]["recurrent_state_bytes"] == 64_389_120
        assert found["batch_bytes"] == 4 * (4096 * 10_240 + 64_389_120)
        assert found["num_sessions"] == {
            "without_cut": 2**30 // (4096 * 10_240 + 64_389_120),
            "with_cut": (2**30 - 4096 * 8192) // (4096 * 2048 + 64_389_120),
        }
    assert "10,240 bytes per token in fp8" in pss("inspect", "kv", hybrid, *options).out


def test_the_figures_are_those_of_the_engine(pss: Pss, model: str) -> None:
    options = ("--num-session-layers", NUM_SESSION_LAYERS, "--kv-dtype", "float32", "--context", 100, "--json")
    found = pss("inspect", "kv", model, *options).json
    assert found["kv_bytes_per_token"]["all"] == 2 * 4 * 2 * 8 * 4
    assert found["sequence"]["kv_bytes_allocated"] == 112 * found["kv_bytes_per_token"]["all"]
    assert found["context"] == 100 < tiny_model().config.max_context


def test_a_config_that_transformers_does_not_know_is_read_as_it_is(pss: Pss, tmp_path: Path) -> None:
    text = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16}
    (tmp_path / "new.json").write_text(json.dumps({"model_type": "of-tomorrow", "text_config": text}))
    found = pss("inspect", "kv", tmp_path / "new.json", "--context", 10, "--kv-dtype", "float16", "--json").json
    assert found["kv_bytes_per_token"]["all"] == 2 * 3 * 1 * 16 * 2
    assert "of-tomorrow" in found["read_as"]


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("{", (), "cannot be read"),
        ("[]", (), "must be an object"),
        ('{"model_type": "x"}', ("--context", 5), "num_hidden_layers"),
        ('{"model_type": "x", "num_hidden_layers": 1}', (), "--context"),
        ('{"model_type": "llama"}', ("--batch", 0), "batch is 0"),
        ('{"model_type": "llama"}', ("--memory-bytes", 0), "memory_bytes is 0"),
        ('{"model_type": "llama"}', ("--context", 5, "--common-tokens", 6), "common_tokens 6"),
        ('{"model_type": "llama", "hidden_size": "x"}', (), "no valid llama"),
    ],
)
def test_what_cannot_be_counted_is_one_line(pss: Pss, tmp_path: Path, text: str, options: tuple, message: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    ran = pss("inspect", "kv", tmp_path / "bad.json", *options)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert message in ran.err


ASK = ("--num-session-layers", "2", "--max-clue-tokens", "6", "--max-answer-tokens", "6")


def ask(pss: Pss, files: Path, model: str, *options: object):
    where = ("--corpus", files / "corpus.jsonl", "--store", files / "store", "--model", model)
    return pss("ask", "heron", "Which checkpoint?", *where, *ASK, *options)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_run_is_written_and_drawn(pss: Pss, files: Path, model: str, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the plot extra has it)")
    log, picture = tmp_path / "kv.jsonl", tmp_path / f"kv{suffix}"
    usage = ask(pss, files, model, "--kv-timeline", log, "--json").json["usage"]
    found = pss("inspect", "timeline", log, "--by", "agent", "--picture", picture, "--json").json
    assert set(found["peak"]["owners"]) <= {"clue", "answer"}
    assert found["peak"]["bytes"] == usage["kv_concurrent_peak_bytes_shared_fraction"]
    drawn = picture.read_bytes()
    if suffix == ".png":
        assert drawn.startswith(b"\x89PNG")
    else:
        words = [node.text for node in ElementTree.fromstring(drawn).iter() if node.text and node.text.strip()]
        assert "KV cache by agent" in words
        assert {"clue", "answer"} <= set(words)
        assert any(word.startswith("peak of calls") for word in words)
    assert "peak" in pss("inspect", "timeline", log).out


def test_a_picture_of_another_kind_is_refused(pss: Pss, files: Path, model: str, tmp_path: Path) -> None:
    log = tmp_path / "kv.jsonl"
    ask(pss, files, model, "--kv-timeline", log)
    ran = pss("inspect", "timeline", log, "--picture", tmp_path / "kv.gif")
    assert (ran.code, "choices: .png, .svg" in ran.err) == (2, True)


def test_an_answer_says_what_it_held(pss: Pss, files: Path, model: str) -> None:
    document = ask(pss, files, model, "--json").json
    usage, calls = document["usage"], document["usage"]["calls"]
    assert [call["agent"] for call in calls] == ["clue", "answer"]
    assert {call["session"] for call in calls} == {"heron"}
    assert len({call["query"] for call in calls}) == 1
    assert usage["kv_peak_bytes"] == max(call["kv_peak_bytes"] for call in calls)
    assert usage["kv_peak_call"]["agent"] == max(calls, key=lambda call: call["kv_peak_bytes"])["agent"]
    assert usage["kv_declared_bytes"] == sum(call["kv_declared_bytes"] for call in calls)
    assert usage["declared_to_measured"] == usage["kv_declared_bytes"] / usage["kv_peak_bytes"] >= 1
    assert sum(document["memory"]["parts"].values()) == document["memory"]["peak"]


def test_budgets_refuse_or_truncate(pss: Pss, files: Path, model: str) -> None:
    needed = ask(pss, files, model, "--json").json["usage"]["calls"][1]["kv_peak_bytes_allocated"]
    refused = ask(pss, files, model, "--max-kv-bytes", needed // 2)
    assert (refused.code, f"max_kv_bytes is {needed // 2}" in refused.err) == (2, True)
    options = ("--model", model, "--num-session-layers", 2, "--max-kv-bytes", 4096 * 4, "--max-new-tokens", 200)
    ran = pss("generate", "hi", *options, "--truncate-to-kv-budget", "--ignore-eos", "--json")
    usage = ran.json["outputs"][0]["usage"]
    assert usage["kv_peak_bytes_allocated"] <= 4096 * 4
    assert usage["truncated_tokens"] == 200 - len(ran.json["outputs"][0]["token_ids"]) > 0
    shown = pss("generate", "hi", *options, "--truncate-to-kv-budget", "--ignore-eos")
    assert "tokens fewer than asked for" in shown.err
