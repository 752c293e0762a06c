"""Scoring what was found."""

from __future__ import annotations

import pytest

from bench.suites.finding import Probe, next_session, share
from pss_engine.retrieval import Hit, Passage
from pss_engine.session import Evidence


def _evidence(*ids: str) -> Evidence:
    return Evidence(tuple(Hit(i, 1.0) for i in ids), tuple(Passage(i, "", "text") for i in ids), 0.0)


@pytest.mark.parametrize(
    ("found", "recall"), [((), 0.0), (("a1",), 0.5), (("a1", "a2"), 0.5), (("a2", "z", "b1"), 1.0), (("z",), 0.0)]
)
def test_recall_counts_groups_of_which_a_passage_was_found(found: tuple[str, ...], recall: float) -> None:
    probe = Probe("s", "query", (frozenset({"a1", "a2"}), frozenset({"b1"})))
    assert probe.recall(_evidence(*found)) == recall


def test_the_wrong_state_is_never_the_sessions_own() -> None:
    assert next_session(["a", "b", "c"]) == {"a": "b", "b": "c", "c": "a"}


def test_a_share_is_the_mean_over_all() -> None:
    assert share([1.0, 0.0, 0.0, 0.0]) == ([0.25], 4)
