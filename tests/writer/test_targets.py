"""Targets are two different search texts, given or extracted by rule; nothing else can be put into them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from pss_engine.errors import ConfigError
from pss_engine.writer import SessionTargets, extract_targets


def turns(*texts):
    return [{"role": "user", "content": text} for text in texts]


def test_the_clue_is_what_the_end_of_the_history_is_about():
    history = turns(
        "We begin with the stereo camera, config heron-stereo-v1, on the slipway.",
        "The stereo camera drops frames on the slipway when the sun is low.",
        "Lunch is at noon, the printer is broken again.",
        "We move to lidar: config heron-lidar-v3 and checkpoint egret-12 on the pier.",
    )
    targets = extract_targets(history)
    assert {"heron-lidar-v3", "egret-12"} <= set(targets.clue.split())
    assert "heron-stereo-v1" in targets.negative_clue.split()
    assert "heron-stereo-v1" not in targets.clue


def test_extraction_is_deterministic_and_works_on_one_turn():
    history = turns("The blue pump 7B feeds the north basin.")
    assert extract_targets(history) == extract_targets(history)
    assert extract_targets(history).negative_clue == ""


def test_a_history_without_words_asks_for_a_clue():
    with pytest.raises(ConfigError, match="give the clue yourself"):
        extract_targets(turns("!!", "…"))


@pytest.mark.parametrize(("clue", "negative", "match"), [(" ", "b", "clue is empty"), ("a", "a ", "same text")])
def test_useless_targets_are_refused(clue, negative, match):
    with pytest.raises(ConfigError, match=match):
        SessionTargets(clue, negative)


def test_the_type_has_no_room_for_answers_or_labels():
    assert [field.name for field in fields(SessionTargets)] == ["clue", "negative_clue"]
