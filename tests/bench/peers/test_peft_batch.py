"""PEFT in a mixed batch and PEFT one by one say what our engine says: what makes their times comparable."""

from __future__ import annotations

import pytest

pytest.importorskip("peft", reason="peft is not installed (see the bench extra)")

from bench.peers import peft_batch, peft_single
from bench.suites.engine.throughput import Ours
from pss_engine.models.source import resolve
from pss_engine.state import save_adapter
from tests.engine.adapters import random_state
from tests.tiny import tiny_model, tiny_model_folder

PROMPTS = [[40, 41, 42, 43], [50, 51, 52, 53], [60, 61, 62, 63]]
SESSIONS = ["s0", "s1", "s0"]
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def states():
    return [random_state(tiny_model(), f"s{i}", seed=i, rank=3 + i) for i in range(2)]


@pytest.mark.parametrize("peer", [peft_batch, peft_single])
def test_tokens_and_times_of_every_request(peer, states, tmp_path):
    folders = {state.session_id: save_adapter(state, tmp_path / state.session_id) for state in states}
    server = peer.Server(resolve(str(tiny_model_folder())), folders, len(PROMPTS[0]) + NEW_TOKENS)
    theirs = server.serve(PROMPTS, SESSIONS, NEW_TOKENS)
    ours = Ours(tiny_model(), states).serve(PROMPTS, SESSIONS, NEW_TOKENS)
    assert theirs.token_ids == ours.token_ids
    for served in (theirs, ours):
        assert len(served.first_token_s) == len(served.per_token_s) == 3
        times = zip(served.first_token_s, served.total_s, strict=True)
        assert all(0 < first < total <= served.seconds for first, total in times)
        assert served.tokens_per_second == pytest.approx(3 * NEW_TOKENS / served.seconds)
