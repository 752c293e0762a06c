"""The agents suite on a tiny model, and its reason where the data is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.suites import Options, Skipped, agents, runner
from pss_engine.agents import Limits
from pss_engine.models import load_model
from tests.evaluation.runs import CELLS, PER_CELL, questions_in
from tests.retrieval.encoders import tiny_encoder
from tests.tiny import NUM_SESSION_LAYERS, save_tiny


def test_without_the_data_the_suite_says_why_it_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match=r"no multihop_qa\.jsonl in the data folder; name one with --data"):
        next(runner("agents")(Options(True, tmp_path)))


def test_every_arm_has_its_rows_and_a_gap_has_no_effect(tmp_path: Path) -> None:
    """A random model reads as noise: whether recall ran is up to it, that the books balance is not."""
    folder = save_tiny(tmp_path / "model", max_position_embeddings=8192)
    model = load_model(str(folder), num_session_layers=NUM_SESSION_LAYERS, device="cpu")
    limits = Limits(max_loops=1, max_questions=1, max_repairs=0, max_tokens={name: 4 for name in Limits().max_tokens})
    questions = questions_in(tmp_path)
    rows = list(agents.measure(model, tiny_encoder(), [questions[0], questions[PER_CELL]], limits))
    peaks = {row.params["arm"]: row for row in rows if row.metric == "kv_peak_bytes" and row.case == "an arm"}
    assert set(peaks) == set(agents.ARMS)
    assert all(row.checked is True for row in peaks.values())
    shares = [row.samples[0] for row in rows if row.case == "whose call is the peak" and row.params["arm"] == "rag"]
    assert sum(shares) == pytest.approx(1.0)
    admitted = {row.params["cell"]: row for row in rows if row.metric == "admitted"}
    assert set(admitted) == set(CELLS)
    for cell, row in admitted.items():
        effects = [other for other in rows if other.case.startswith("enabled") and other.params["cell"] == cell]
        assert bool(effects) == (row.checked is True) == (row.samples[0] == 1.0)
