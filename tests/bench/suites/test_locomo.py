"""Dialogues as histories, passages and probes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.suites import Skipped
from bench.suites.locomo import annotated, cover, load, spans, vague
from pss_engine.models import Tokenizer
from tests.tiny import tiny_tokenizer

TURNS = [
    {"id": "D1:1", "session": 1, "time": "noon", "speaker": "Ada", "text": "The boat is blue."},
    {"id": "D1:2", "session": 1, "time": "noon", "speaker": "Bo", "text": "Look!", "image_caption": "a red boat"},
    {"id": "D2:1", "session": 2, "time": "one", "speaker": "Ada", "text": "We sail on Monday."},
]
QA = [
    {"qa_id": "q1", "question": "Which colour?", "category_name": "single-hop", "evidence_ids": ["D1:1", "D1:2"]},
    {"qa_id": "q2", "question": "Nothing?", "category_name": "single-hop", "evidence_ids": []},
    {"qa_id": "q3", "question": "When?", "category_name": "temporal", "evidence_ids": ["D2:1"]},
    {"qa_id": "q4", "question": "Repaired?", "category_name": "single-hop", "evidence_ids": ["D9:9"]},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"dialogue_id": f"locomo/{name}", "speakers": ["Ada", "Bo"], "turns": TURNS, "qa": QA} for name in "xy"]
    (tmp_path / "dialogue_memory.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_the_history_has_every_turn_and_none_of_the_questions(folder: Path) -> None:
    dialogue = load(folder)[0]
    assert dialogue.session == "x"
    assert dialogue.messages == [
        {"role": "Ada", "content": "The boat is blue."},
        {"role": "Bo", "content": "Look! [picture: a red boat]"},
        {"role": "Ada", "content": "We sail on Monday."},
    ]


def test_passages_keep_to_one_sitting_and_know_their_turns(folder: Path) -> None:
    windows = list(cover(load(folder)[1], Tokenizer(tiny_tokenizer())))
    assert [(w.passage.id, w.passage.doc_id, w.sitting, sorted(w.turn_ids)) for w in windows] == [
        ("y/D1:1-D1:2", "y", 1, ["D1:1", "D1:2"]),
        ("y/D2:1-D2:1", "y", 2, ["D2:1"]),
    ]
    assert windows[0].passage.title == "Ada and Bo, noon"


def test_gold_of_the_vague_follow_up_is_the_last_sitting_of_the_own_dialogue(folder: Path) -> None:
    dialogues, tokenizer = load(folder), Tokenizer(tiny_tokenizer())
    windows = [window for dialogue in dialogues for window in cover(dialogue, tokenizer)]
    assert vague(dialogues[0], windows).gold == (frozenset({"x/D2:1-D2:1"}),)


def test_questions_are_single_hop_with_evidence_that_exists(folder: Path) -> None:
    dialogue = load(folder)[0]
    windows = list(cover(dialogue, Tokenizer(tiny_tokenizer())))
    (probe,) = annotated(dialogue, windows, 10)
    assert probe.query == "Which colour?"
    assert probe.gold == (frozenset({"x/D1:1-D1:2"}), frozenset({"x/D1:1-D1:2"}))


@pytest.mark.parametrize(
    ("lens", "expected"),
    [
        ([50], [(0, 1)]),
        ([500, 10], [(0, 1), (1, 2)]),
        ([60, 60, 60, 60], [(0, 3), (3, 4)]),
        ([60, 60, 40, 60, 60], [(0, 3), (2, 5)]),
        ([20] * 12, [(0, 9), (7, 12)]),
        ([100, 40, 180, 30], [(0, 2), (2, 3), (3, 4)]),
    ],
)
def test_windows_cover_all_turns_with_the_overlap_that_fits(lens: list[int], expected: list[tuple[int, int]]) -> None:
    found = spans(lens, 192, 48)
    assert found == expected
    assert {turn for start, end in found for turn in range(start, end)} == set(range(len(lens)))


def test_absent_data_is_a_reason_to_skip(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match="--data"):
        load(tmp_path)
