"""The agents suite on a tiny model, and its reason where the data is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.suites import Options, Skipped, runner
from bench.suites.agents import questions as multi_hop
from bench.suites.agents import sessions
from pss_engine.agents import Limits
from pss_engine.models import LoadedModel, load_model
from pss_engine.writer import WriterConfig
from tests.evaluation.runs import CELLS, PER_CELL, questions_in
from tests.retrieval.encoders import tiny_encoder
from tests.tiny import NUM_SESSION_LAYERS, save_tiny

LIMITS = Limits(max_loops=1, max_questions=1, max_repairs=0, max_tokens={name: 4 for name in Limits().max_tokens})


def tiny_model_in(folder: Path) -> LoadedModel:
    saved = save_tiny(folder / "model", max_position_embeddings=8192)
    return load_model(str(saved), num_session_layers=NUM_SESSION_LAYERS, device="cpu")


def test_without_the_data_the_suite_says_why_it_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match=r"no multihop_qa\.jsonl in the data folder; name one with --data"):
        next(runner("agents")(Options(True, tmp_path)))


def test_every_arm_has_its_rows_and_a_gap_has_no_effect(tmp_path: Path) -> None:
    """A random model reads as noise: whether recall ran is up to it, that the books balance is not."""
    model = tiny_model_in(tmp_path)
    questions = questions_in(tmp_path)
    rows = list(multi_hop.measure(model, tiny_encoder(), [questions[0], questions[PER_CELL]], LIMITS))
    peaks = {row.params["arm"]: row for row in rows if row.metric == "kv_peak_bytes" and row.case == "an arm"}
    assert set(peaks) == set(multi_hop.ARMS)
    assert all(row.checked is True for row in peaks.values())
    shares = [row.samples[0] for row in rows if row.case == "whose call is the peak" and row.params["arm"] == "rag"]
    assert sum(shares) == pytest.approx(1.0)
    admitted = {row.params["cell"]: row for row in rows if row.metric == "admitted"}
    assert set(admitted) == set(CELLS)
    for cell, row in admitted.items():
        effects = [other for other in rows if other.case.startswith("enabled") and other.params["cell"] == cell]
        assert bool(effects) == (row.checked is True) == (row.samples[0] == 1.0)


def test_states_give_the_clues_of_their_own_arm_only(tmp_path: Path) -> None:
    config = WriterConfig(min_lm_steps=1, readout_steps=2, coverage="last_128", rank=4)
    rows = list(sessions.measure(tiny_model_in(tmp_path), tiny_encoder(), 1, config, LIMITS))
    for metric in ("gold_retrieved", "kv_peak_bytes", "num_calls"):
        found = {row.params["arm"]: row for row in rows if row.metric == metric}
        assert set(found) == set(sessions.ARMS)
        assert all(row.n == row.params["followups"] == 4 for row in found.values())
