"""Patterns mean what they mean to PEFT, and a hostile one cannot keep us busy."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peft.utils.other import get_pattern_key

from pss_engine.errors import StateFormatError
from pss_engine.state.patterns import NamePattern

NAMES = [f"model.layers.{layer}.self_attn.{module}" for layer in (1, 2, 12) for module in ("q_proj", "v_proj")]
PATTERNS = [
    "q_proj",
    "layers.2.self_attn.q_proj",
    "^model.layers.1.self_attn.q_proj",
    "^layers.1.self_attn.q_proj",
    r".*\.(q|v)_proj",
    r"layers\.(1|2)\..*",
    r"layers\.[0-9]{1,}\.self_attn\.q_proj",
    r"(?:.*?(?:self_attn|mlp).*?(?:q_proj|k_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:mlp)\.(?:up_proj))",
    "proj",
    "_proj",
    "self_attn",
    "",
    r"\w+",
]

atoms = st.sampled_from(["a", "b", ".", r"\.", "[ab]", "[^a]", r"\w", "^", "$", r"\b"])
quantifiers = st.sampled_from(["", "", "*", "+", "?", "*?", "{2}", "{0,2}", "{1,}", "{,2}"])
patterns = st.recursive(
    st.builds(lambda atom, quantifier: atom + ("" if atom in ("^", "$", r"\b") else quantifier), atoms, quantifiers),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.builds(lambda left, right, quantifier: f"({left}|{right}){quantifier}", inner, inner, quantifiers),
    ),
    max_leaves=6,
)


@given(patterns, st.text("ab.", max_size=8))
@settings(max_examples=500, deadline=None)
def test_a_pattern_matches_what_re_matches(source, text):
    assert NamePattern(source, "test").matches(text) == bool(re.fullmatch(source, text))


@pytest.mark.parametrize("source", PATTERNS)
@pytest.mark.parametrize("name", NAMES)
def test_suffixes_match_as_in_peft(source, name):
    assert NamePattern(source, "test").matches_suffix(name) == (get_pattern_key([source], name) == source)


@pytest.mark.parametrize("source", [r"(a+)+b", r"(.*)*x", "(a|a)" * 30 + "b", r"(\w|\w\w)*!", ".*" * 20 + "z"])
def test_a_pattern_that_makes_re_explode_is_answered(source):
    assert not NamePattern(source, "test").matches("a" * 60)


@pytest.mark.parametrize(
    "source",
    [
        "(",
        ")",
        "a)",
        "(a",
        "*a",
        "a**",
        "a++",
        "a{3}{2}",
        "[a",
        "[b-a]",
        "(?=a)",
        r"(a)\1",
        "a{9999}",
        "{}",
        "\\",
        "(?P<n>a)",
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(source):
    with pytest.raises(StateFormatError, match="config: pattern") as caught:
        NamePattern(source, "config")
    assert "\n" not in str(caught.value)


def test_a_long_or_deep_pattern_is_refused():
    with pytest.raises(StateFormatError, match="1025 characters, at most 1024"):
        NamePattern("a" * 1025, "config")
    with pytest.raises(StateFormatError, match="nest deeper than 16"):
        NamePattern("(" * 40 + "a" + ")" * 40, "config")
