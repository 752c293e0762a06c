"""Targets are two different search texts, given or extracted by rule; nothing else can be put into them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from pss_engine.errors import ConfigError
from pss_engine.writer import History, SessionTargets, extract_targets, find_targets
from pss_engine.writer.extraction import MAX_CLUE_TOKENS


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
    names = [field.name for field in fields(SessionTargets)]
    assert names == ["clue", "negative_clue", "topic", "entities", "decision", "query", "superseded", "evidence"]
    with pytest.raises(ConfigError, match="'answer' is no target; choices: clue, negative_clue"):
        SessionTargets.from_dict({"clue": "a", "answer": "42"}, "history 'h'")


def test_evidence_must_be_a_part_of_the_history():
    history = History.of(turns("The valve is at 7 bar.", "Agreed."))
    find_targets(history, SessionTargets("valve", evidence=("valve is at  7 bar",)))
    with pytest.raises(ConfigError, match="evidence 'the answer is 42' is not in the history"):
        find_targets(history, SessionTargets("valve", evidence=("the answer is 42",)))


def test_targets_come_from_the_first_source_that_there_is():
    chat = turns("Tune pump A.", "noted", "Active request: tune pump B7", "done")
    given, declared = SessionTargets("given"), SessionTargets("declared")
    assert find_targets(History.of(chat, declared), given) == (given, "given")
    assert find_targets(History.of(chat, declared)) == (declared, "history file")
    found, source = find_targets(History.of(chat))
    assert (found.clue, found.negative_clue, source) == ("tune pump B7", "noted", "active request")
    assert find_targets(History.of(chat[:2]))[1] == "words of the history"


def test_a_turn_that_is_marked_active_is_the_clue_and_the_request_before_it_the_negative():
    rows = [*turns("Plot route A."), {"role": "assistant", "content": "plotted"}]
    rows += [{"role": "user", "content": "Plot route B7.", "active": True}, *turns("thanks")]
    found, source = find_targets(History.from_rows(rows, "h"))
    assert (found.clue, found.query, source) == ("Plot route B7.", "Plot route B7.", "active request")
    with pytest.raises(ConfigError, match="h, turn 5: a second active turn"):
        History.from_rows([*rows, {"role": "user", "content": "no, C", "active": True}], "h")


def test_what_is_extracted_is_short_enough_to_be_learned():
    words = " ".join(f"term{number}-x" for number in range(40))
    for history in (History.of(turns("start", words)), History.of(turns(f"Active request: {words}"))):
        found, _ = find_targets(history, count_tokens=len)
        assert 0 < len(found.clue) <= MAX_CLUE_TOKENS
