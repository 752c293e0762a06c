from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.errors import ConfigError
from pss_engine.retrieval.chunking import token_offsets, token_windows


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int]:
    """Offsets of words between gaps, each word one token or one character spread over several."""
    offsets: list[tuple[int, int]] = []
    at = 0
    for length, num_tokens, gap in draw(
        st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=40)
    ):
        length = 1 if num_tokens > 1 else length
        offsets += [(at, at + length)] * num_tokens
        at += length + gap
    return offsets, at


@st.composite
def window_sizes(draw: st.DrawFn, smallest: int = 1) -> tuple[int, int]:
    chunk = draw(st.integers(smallest, 20))
    return chunk, draw(st.integers(0, chunk - 1))


@given(documents(), window_sizes())
def test_windows_cover_every_token_and_every_character(
    document: tuple[list[tuple[int, int]], int], sizes: tuple[int, int]
) -> None:
    offsets, num_chars = document
    windows = token_windows(offsets, num_chars, *sizes)
    assert windows[0].first_token == windows[0].start == 0
    assert windows[-1].end_token == len(offsets) and windows[-1].end == num_chars
    for before, after in pairwise(windows):
        assert before.first_token < after.first_token <= before.end_token < after.end_token
        assert before.start < after.start <= before.end < after.end


@given(documents(), window_sizes(smallest=4))
def test_no_window_is_longer_than_asked_and_none_cuts_a_character(
    document: tuple[list[tuple[int, int]], int], sizes: tuple[int, int]
) -> None:
    offsets, num_chars = document
    for window in token_windows(offsets, num_chars, *sizes):
        assert 1 <= window.end_token - window.first_token <= sizes[0]
        inside = offsets[window.first_token : window.end_token]
        assert all(window.start <= start and end <= window.end for start, end in inside)


@given(st.integers(1, 300), window_sizes())
def test_one_character_tokens_overlap_by_exactly_what_was_asked(num_tokens: int, sizes: tuple[int, int]) -> None:
    chunk, overlap = sizes
    windows = token_windows([(i, i + 1) for i in range(num_tokens)], num_tokens, chunk, overlap)
    assert all(w.end_token - w.first_token == chunk for w in windows[:-1])
    assert all(a.end_token - b.first_token == overlap for a, b in pairwise(windows))


def test_a_character_longer_than_the_window_is_kept_whole() -> None:
    windows = token_windows([(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)], 3, chunk_tokens=2, overlap_tokens=1)
    assert [(w.start, w.end) for w in windows] == [(0, 1), (1, 2), (2, 3)]


def test_a_document_without_tokens_is_one_window() -> None:
    assert token_windows([], 3) == [(0, 0, 0, 3)]


@pytest.mark.parametrize(("chunk", "overlap", "named"), [(48, 48, "48"), (8, 9, "9"), (8, -1, "-1"), (0, 0, "0")])
def test_an_overlap_that_does_not_fit_is_refused(chunk: int, overlap: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        token_windows([(0, 1)], 1, chunk, overlap)


def test_a_tokenizer_without_offsets_is_refused() -> None:
    class SlowTokenizer:
        is_fast = False

    with pytest.raises(ConfigError, match="SlowTokenizer has no token offsets"):
        token_offsets("text", SlowTokenizer())


def test_offsets_are_asked_for_without_special_tokens() -> None:
    class WordTokenizer:
        is_fast = True

        def __call__(self, text: str, **options: Any) -> dict[str, Any]:
            assert options["add_special_tokens"] is False and options["split_special_tokens"] is True
            return {"offset_mapping": [match.span() for match in re.finditer(r"\S+", text)]}

    assert token_offsets("two words", WordTokenizer()) == [(0, 3), (4, 9)]
