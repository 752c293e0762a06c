"""Communication Units come back as they were, or not at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.agents.messages import KINDS, ROUTES, Draft, Evidence, Reasoning, SubQuestions, Verdict, decode, encode
from pss_engine.errors import ConfigError

TEXT = st.text(max_size=20)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
UNITS = st.one_of(
    st.builds(SubQuestions, TEXTS),
    st.builds(Evidence, TEXT, TEXTS, st.lists(st.floats(-1, 1), max_size=3).map(tuple)),
    st.builds(Reasoning, TEXT, st.integers(1, 9), TEXT, TEXTS, TEXTS),
    st.builds(Verdict, st.floats(0, 1), st.sampled_from(ROUTES), TEXT),
    st.builds(Draft, TEXT, st.integers(1, 9)),
)
DRAFT = json.loads(encode(Draft("Brest", 1)))


@given(UNITS)
def test_a_unit_survives_its_encoding(unit):
    assert decode(encode(unit), type(unit)) == unit


@given(UNITS, st.data())
def test_damaged_bytes_are_refused_or_the_same_kind(unit, data):
    encoded = bytearray(encode(unit))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(decode(bytes(encoded), type(unit)), type(unit))
    except ConfigError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "schema version 2; this build reads 1"),
        ({"kind": "verdict"}, "is 'verdict'; expected 'draft'"),
        ({"more": 1}, "nothing else"),
        ({"body": {"answer": "Brest"}}, "fields answer, attempt"),
        ({"body": {"answer": "Brest", "attempt": "1"}}, "draft.attempt is str; expected int"),
        ({"body": {"answer": "Brest", "attempt": True}}, "draft.attempt is bool; expected int"),
    ],
)
def test_what_is_not_of_the_schema_is_refused(change, reason):
    with pytest.raises(ConfigError, match=reason):
        decode(json.dumps({**DRAFT, **change}).encode(), Draft)


def test_a_verdict_out_of_range_cannot_be_made():
    with pytest.raises(ConfigError, match=r"score is 1\.5"):
        Verdict(1.5, "accept", "")
    with pytest.raises(ConfigError, match="choices: accept, re-reason, re-retrieve"):
        Verdict(0.5, "maybe", "")


def test_kinds_are_unique():
    assert len(KINDS) == 5
