"""Histories of users are read in order, and what cannot be a history is refused in one line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pss_engine.errors import ConfigError
from pss_engine.models import Tokenizer
from pss_engine.writer import History, SessionTargets
from tests.tiny import tiny_tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer())


def write(tmp_path, text, name="history.jsonl"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def test_turns_come_in_order_and_targets_from_the_first_line(tmp_path):
    rows = [
        {"session": "s", "clue": "plan B", "negative_clue": "plan A"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "time": "ignored"},
    ]
    history = History.load(write(tmp_path, "\n".join(map(json.dumps, rows))))
    assert [turn["content"] for turn in history.turns] == ["one", "two"]
    assert history.targets == SessionTargets("plan B", "plan A")


def test_a_line_separator_inside_a_string_ends_no_line(tmp_path):
    row = json.dumps({"role": "user", "content": "one\u2028two"}, ensure_ascii=False)
    assert History.load(write(tmp_path, row)).turns[0]["content"] == "one\u2028two"


def test_plain_text_is_one_turn(tmp_path):
    history = History.load(write(tmp_path, "we met on Monday\nand agreed", "notes.txt"))
    assert history.turns == ({"role": "user", "content": "we met on Monday\nand agreed"},)
    assert history.targets is None


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "history .*is empty"),
        ("\n\n", "history .*is empty"),
        ('{"role": "user", "content": "   "}', "history .*is empty"),
        ('{"role": "user"}', "turn 1: a turn needs the strings 'role' and 'content'"),
        ('{"role": "user", "content": "a"}\n{"role": 3, "content": "b"}', "turn 2"),
        ('{"role": "user", "content": "a"}\n{oops', "line 2 is not JSON"),
        ('{"role": "narrator", "content": "a"}', "turn 1: role 'narrator' is unknown; choices: system, user"),
        ('{"record": "r1"}', "turn 1: a record needs the strings 'record'"),
        ('{"clue": "a", "gold_ids": ["d1"]}', "'gold_ids' is no target; choices: clue"),
        ("[1, 2]", "line 1 is not a JSON object"),
        ('{"clue": ""}\n{"role": "user", "content": "a"}', "clue is empty"),
        ('{"clue": 7}\n{"role": "user", "content": "a"}', "clue"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_what_is_no_history_is_refused(tmp_path, text, match):
    with pytest.raises(ConfigError, match=match):
        History.load(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.jsonl' cannot be read: No such file"):
        History.load(tmp_path / "nothing.jsonl")


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=6), st.integers(2, 20))
@settings(deadline=None)
def test_chunks_are_the_history_in_order(texts, chunk_tokens):
    turns = [{"role": "user", "content": text} for text in texts]
    if not any(text.strip() for text in texts):
        return
    chunks = History.of(turns).chunks(TOKENIZER, chunk_tokens)
    whole = TOKENIZER.encode("\n".join(f"user: {t}" for t in texts if t.strip()))
    flat = [token for chunk in chunks for token in chunk]
    assert flat == whole[: len(flat)]
    assert len(whole) - len(flat) <= 1
    assert all(2 <= len(chunk) <= chunk_tokens for chunk in chunks)
