"""``pss eval`` on a tiny model: a run, its report, going on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pss_engine.state import StateStore
from tests.cli.conftest import Pss
from tests.evaluation.runs import write_questions
from tests.retrieval.encoders import save_encoder

FAST = ["--per-cell", 1, "--max-loops", 1, "--max-questions", 1, "--num-session-layers", 2, "--kv-cache-bytes", 2**23]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("encoder"))


def test_a_run_is_reported_with_its_gaps_and_goes_on(pss: Pss, model: str, encoder: Path, tmp_path: Path) -> None:
    """A random model writes nothing readable and its context is short: every question fails, and all of it is told."""
    argv = [
        "eval",
        "ablation",
        write_questions(tmp_path),
        "--out",
        "run",
        "--model",
        model,
        "--encoder",
        encoder,
        *FAST,
    ]
    ran = pss(*argv, "--replicates", 1, "--json")
    assert ran.code == 1, ran.err
    arms, ablation = ran.json["arms"], ran.json["ablation"]
    assert {arm: found["n"] for arm, found in arms.items()} == {"coa-pkv": 2, "coa-nokv": 2}
    assert sum(arms["coa-pkv"]["outcomes"].values()) == 2
    assert arms["coa-pkv"]["counters"]["num_malformed"] + arms["coa-pkv"]["counters"]["num_call_faults"] > 0
    assert all(cell["effects"] is None and cell["gaps"] for cell in ablation["cells"].values())
    assert ablation["pooled"] is None and "at least 2 replicates" in ablation["floor"]["gap"]
    assert "asked 4 questions, in run" in ran.err
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    again = pss(*argv, "--replicates", 1)
    assert again.code == 1 and (tmp_path / "run" / "records.jsonl").read_bytes() == before
    assert (
        "gap hotpot: " in again.out
        and "num_recalled" in again.out
        and "floor: 95 % band of one run unknown" in again.out
    )
    assert pss("eval", "report", "run", "--encoder", encoder).out == again.out
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<svg") == 5 and page.count("<details>") == 4
    other = pss(*argv, "--replicates", 2)
    assert other.code == 2 and "is of another plan" in other.err


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_states_of_a_store_give_the_clues(
    pss: Pss, model: str, encoder: Path, files: Path, tmp_path: Path, tenant: str
) -> None:
    StateStore(tmp_path / "store", tenant=tenant).put(StateStore(files / "store").get("heron"))
    rows = [json.loads(line) for line in write_questions(tmp_path).read_text().splitlines()]
    path = tmp_path / "with_sessions.jsonl"
    path.write_text("".join(json.dumps({**row, "session": "heron"}) + "\n" for row in rows))
    argv = ["eval", "ablation", path, "--model", model, "--encoder", encoder, *FAST, "--store", tmp_path / "store"]
    argv += ["--tenant", tenant] if tenant else []
    ran = pss(*argv, "--replicates", 1, "--arms", "coa-pss", "--units", tmp_path / "units.db", "--json")
    assert ran.code == 0, ran.err
    arm = ran.json["arms"]["coa-pss"]
    assert arm["n"] == 2 and arm["counters"]["num_calls"] > 0
    records = [json.loads(line) for line in (tmp_path / "pss_run" / "records.jsonl").read_text().splitlines()]
    clues = [call for row in records for call in row["usage"]["calls"] if call["state_bytes"]]
    assert len(clues) >= arm["counters"]["num_clues"] and {call["agent"] for call in clues} <= {"retriever"}
    assert all(row["request"]["session"] == "heron" for row in records)


def test_arms_without_an_ablation_say_so(pss: Pss, model: str, encoder: Path, tmp_path: Path) -> None:
    argv = ["eval", "ablation", write_questions(tmp_path), "--model", model, "--encoder", encoder, *FAST]
    ran = pss(*argv, "--replicates", 1, "--arms", "flat", "--arms", "rag")
    assert ran.code == 0, ran.err
    assert "no ablation: the run has no arm coa-pkv" in ran.out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ablation", "nothing.jsonl"], "questions 'nothing.jsonl' cannot be read"),
        (["ablation", "q.jsonl", "--arms", "best"], "arm 'best' is unknown; choices: flat, rag"),
        (["ablation", "q.jsonl", "--arms", "coa-pss", "--per-cell", "1"], "needs --store, and a session in every line"),
        (["report", "nothing"], "'nothing' is no run"),
    ],
)
def test_what_cannot_be_run_is_told_before_a_model_is_loaded(
    pss: Pss, argv: list[str], message: str, tmp_path: Path
) -> None:
    write_questions(tmp_path).rename(tmp_path / "q.jsonl")
    ran = pss("eval", *argv)
    assert ran.code == 2 and message in ran.err and "loaded" not in ran.err
