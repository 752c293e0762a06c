"""The kv suite on a tiny model: its figures agree with each other, and a missing file is a reason, not an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import pictures
from bench.suites import Options, Skipped, runner
from bench.suites.kv import arms, cost, cut, rounding
from bench.suites.kv.questions import load
from pss_engine.kv import CallUsage, QueryUsage
from pss_engine.kv.timeline import read_curves
from pss_engine.models import LoadedModel, load_model
from tests.tiny import NUM_SESSION_LAYERS, save_tiny, tiny_model

ROWS = [
    {
        "id": f"musique/{name}",
        "question": "Where is the harbour of the boat that Ada built?",
        "paragraphs": [
            {"title": "Ada", "text": "Ada built the Heron."},
            {"title": "Heron", "text": "The Heron lies in Brest."},
            {"title": "Soup", "text": "Leek soup on Friday."},
        ],
        "decomposition": [{"question": "Which boat did Ada built?"}, {"question": "Where does #1 lie?"}],
    }
    for name in "ab"
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_tiny(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)
    return load_model(str(folder), num_session_layers=NUM_SESSION_LAYERS, device="cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    whole = {**ROWS[0], "id": "hotpotqa/c", "decomposition": []}
    (folder / "multihop_qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [whole, *ROWS]))
    return folder


def test_without_the_data_the_suite_says_why_it_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match=r"no multihop_qa\.jsonl in the data folder; name one with --data"):
        next(runner("kv")(Options(True, tmp_path)))


def test_questions_have_parts_with_the_answers_before_them(data: Path) -> None:
    questions = load(data, 9)
    assert [question.id for question in questions] == ["musique/a", "musique/b"]
    assert questions[0].part(1, ["the Heron"]) == "Where does the Heron lie?"
    assert [passage.title for passage in questions[0].search("Heron Brest")] == ["Heron", "Ada"]
    assert len(load(data, 1)) == 1


def test_every_arm_is_counted_and_the_rows_agree(model: LoadedModel, data: Path) -> None:
    asked = arms.ask(model, load(data, 9))
    assert asked.checked is True
    assert {arm: [len(usage.calls) for usage in usages] for arm, usages in asked.usages.items()} == {
        "flat": [1, 1],
        "rag": [1, 1],
        "decomposed": [4, 4],
    }
    assert [call.agent for call in asked.usages["decomposed"][0].calls] == [
        "decomposer",
        "reasoner",
        "reasoner",
        "synthesiser",
    ]
    rows = [*arms.rows(asked), *rounding.rows(asked)]
    assert all(row.checked is True for row in rows)
    shares = [row.samples[0] for row in rows if row.metric == "share"]
    assert sum(shares) == pytest.approx(1.0)
    peaks = {row.params["arm"]: row.samples for row in rows if row.metric == "kv_peak_bytes"}
    (ratios,) = (row.samples for row in rows if row.case.startswith("decomposed over RAG") and row.metric == "peak")
    assert list(ratios) == [a / b for a, b in zip(peaks["decomposed"], peaks["rag"], strict=True)]


def test_whole_blocks_of_the_largest_call() -> None:
    calls = [CallUsage(str(n), kv_peak_tokens=n, kv_bytes_per_token=10, kv_peak_bytes=n * 10) for n in (17, 30)]
    usage = QueryUsage(calls)
    assert [rounding.peak_in_blocks(usage, size) for size in (8, 16, 32, 64)] == [320, 320, 320, 640]


def test_the_cut_saves_bytes_and_leaves_a_timeline_that_is_drawn(model: LoadedModel, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (see the plot extra)")
    rows = list(cut.run(model, tmp_path))
    assert all(row.checked is True for row in rows)
    held = {
        row.params["cut"]: row.samples[0] for row in rows if row.metric == "held_at_the_peak" and row.unit == "bytes"
    }
    assert 0 < held["with"] < held["without"]
    timeline = pictures.timeline_of("kv", tmp_path)
    assert read_curves(timeline).peak_bytes == held["with"]
    pictures.draw(tmp_path / "kv.jsonl")
    line = pictures.link(tmp_path / "kv.jsonl", tmp_path)
    assert line.strip() == f"![KV over time by session, peak {held['with'] / 2**20:.1f} MiB](kv_timeline.svg)"
    assert (tmp_path / "kv_timeline.svg").read_text().count("<svg") == 1
    assert pictures.link(tmp_path / "lora.jsonl", tmp_path) == ""


def test_the_cost_is_measured_on_a_ledger_that_was_told_the_same() -> None:
    found = {row.metric: row for row in cost.run(tiny_model())}
    assert all(row.checked is True for row in found.values())
    assert set(found) == {"decode_step", "ledger", "proof_every_256_steps", "ledger_share", "proof_share"}
    assert all(sample > 0 for row in found.values() for sample in row.samples)
