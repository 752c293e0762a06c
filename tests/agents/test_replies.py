"""Replies are read strictly: each form has texts it takes, texts it refuses, and nothing between."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.agents.replies import FORMS, Malformed, fill, references

SMALL, LARGE = FORMS["small"], FORMS["large"]


def test_lines_of_questions():
    assert SMALL.questions("1. Which boat?\n\n- Where does #1 lie?\n", 3) == ("Which boat?", "Where does #1 lie?")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 questions"),
        ("a?\nb?\nc?\nd?", "4 questions; 1 to 3"),
        ("Here are the questions:\nWhich boat?", "does not end with a question mark"),
        ("Where does #1 lie?", "does not come before it"),
        ("Which?\nWhere does #3 lie?\nWho?", "does not come before it"),
        ("Which #0?", "does not come before it"),
        ("Which?\nWhich?", "twice"),
    ],
)
def test_questions_that_are_refused(text, reason):
    with pytest.raises(Malformed, match=reason):
        SMALL.questions(text, 3)
    if text:
        with pytest.raises(Malformed):
            LARGE.questions(text, 3)


def test_json_of_every_kind():
    assert LARGE.questions('{"questions": ["Which boat", "Where is #1"]}', 3) == ("Which boat", "Where is #1")
    assert LARGE.search('```json\n{"search": "heron boat"}\n```') == "heron boat"
    assert LARGE.answer('{"answer": " Brest "}') == "Brest"
    verdict = LARGE.verdict('{"score": 0, "route": "re-reason", "critique": "no"}', 0.7)
    assert (verdict.score, verdict.route, verdict.critique) == (0.0, "re-reason", "no")
    assert LARGE.answer_verdict('{"score": 0.7, "critique": ""}', 0.7).route == "accept"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"answer": 3}',
        '{"answer": ""}',
        '{"answer": "a", "more": 1}',
        'Sure! {"answer": "a"}',
        '{"answer": "a"} {"answer": "b"}',
    ],
)
def test_json_answers_that_are_refused(text):
    with pytest.raises(Malformed):
        LARGE.answer(text)


@pytest.mark.parametrize("text", ["0.90 accept", "1.0 accept", "0.2 re-reason", "0 re-retrieve"])
def test_verdict_lines(text):
    verdict = SMALL.verdict(f" {text}\n", 0.7)
    assert text.split() == [text.split()[0], verdict.route] and verdict.score == float(text.split()[0])


def test_a_score_that_accepts_needs_no_route():
    assert SMALL.verdict("0.9", 0.7).route == "accept"
    with pytest.raises(Malformed, match=r"score 0\.40 is below 0\.70, and no route is given"):
        SMALL.verdict("0.4", 0.7)


@pytest.mark.parametrize(
    "text", ["0.4", "accept", "0.9 maybe", "1.5 accept", "90% accept", "0.9 accept\nbecause", "-0 accept"]
)
def test_verdict_lines_that_are_refused(text):
    with pytest.raises(Malformed):
        SMALL.verdict(text, 0.7)


@pytest.mark.parametrize("text", ["0.3 accept", "0.9 re-reason"])
def test_a_verdict_that_contradicts_its_score_is_no_verdict(text):
    with pytest.raises(Malformed, match=r"contradict each other at threshold 0\.70"):
        SMALL.verdict(text, 0.7)


@pytest.mark.parametrize("score", ["NaN", "Infinity", "-0.1", "1.01", "true", '"0.9"'])
def test_scores_that_are_no_scores(score):
    with pytest.raises(Malformed):
        LARGE.answer_verdict(f'{{"score": {score}, "critique": ""}}', 0.7)


@given(st.text(max_size=80))
def test_any_text_is_read_or_malformed(text):
    for form in (SMALL, LARGE):
        for read in (
            form.search,
            form.answer,
            lambda t, form=form: form.questions(t, 3),
            lambda t, form=form: form.verdict(t, 0.7),
            lambda t, form=form: form.answer_verdict(t, 0.7),
        ):
            try:
                assert read(text)
            except Malformed as error:
                assert str(error)


@given(st.floats(0, 1), st.sampled_from(["accept", "re-reason", "re-retrieve"]), st.text(max_size=20))
def test_a_readable_verdict_says_what_was_written(score, route, critique):
    text = json.dumps({"score": score, "route": route, "critique": critique})
    if (score >= 0.7) == (route == "accept"):
        verdict = LARGE.verdict(text, 0.7)
        assert (verdict.score, verdict.route, verdict.critique) == (score, route, critique)
    else:
        with pytest.raises(Malformed):
            LARGE.verdict(text, 0.7)


def test_references_are_filled_with_the_answers_they_name():
    assert references("Is #2 older than #1 or #2?") == (0, 1)
    assert fill("Is #2 older than #1?", {0: "Ada", 1: "Heron"}) == "Is Heron older than Ada?"
