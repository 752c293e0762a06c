"""Cutting a long document into windows of tokens whose text is an exact slice of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pss_engine.errors import ConfigError
from pss_engine.retrieval.passage import Passage

CHUNK_TOKENS = 192
OVERLAP_TOKENS = 48
PRESETS = {"192/48": (192, 48), "512/64": (512, 64)}
"""``chunk_tokens, overlap_tokens`` of PSS-320 and of the public sessionization (PSS, section 3)."""


class Window(NamedTuple):
    """Tokens ``[first_token, end_token)`` of a document, and its characters ``[start, end)``."""

    first_token: int
    end_token: int
    start: int
    end: int


def check_window(chunk_tokens: int, overlap_tokens: int) -> None:
    """Raise ConfigError unless ``0 <= overlap_tokens < chunk_tokens``."""
    if chunk_tokens < 1:
        raise ConfigError(f"chunk_tokens is {chunk_tokens}; it must be 1 or more")
    if not 0 <= overlap_tokens < chunk_tokens:
        raise ConfigError(
            f"overlap_tokens is {overlap_tokens}; it must be 0 or more and below chunk_tokens, which is {chunk_tokens}"
        )


def token_offsets(text: str, tokenizer: Any) -> list[tuple[int, int]]:
    """Character span of every token of ``text``, by a fast Hugging Face tokenizer, without special tokens.

    Text that looks like a special token (``<|im_start|>``) counts as the ordinary text it is.

    Raises:
        ConfigError: the tokenizer has no offsets (the slow, pure-Python kind).
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(f"tokenizer {type(tokenizer).__name__} has no token offsets; chunking needs a fast tokenizer")
    encoded = tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
    )
    return [(int(start), int(end)) for start, end in encoded["offset_mapping"]]


def token_windows(
    offsets: list[tuple[int, int]],
    num_chars: int,
    chunk_tokens: int = CHUNK_TOKENS,
    overlap_tokens: int = OVERLAP_TOKENS,
) -> list[Window]:
    """Windows of at most ``chunk_tokens`` tokens; each starts ``overlap_tokens`` before the end of the one before.

    The windows cover all characters ``[0, num_chars)``: whitespace between two tokens stays with the first of them.
    No character is cut: where one is spread over several tokens (an emoji in a byte-level vocabulary) that meet the
    edge of a window, the window ends before it and the overlap differs from ``overlap_tokens`` by those few tokens.
    Only a character of more than ``chunk_tokens`` tokens makes a window longer than that.

    Args:
        offsets: character span ``(start, end)`` of each token, in order.
        num_chars: length of the document in characters.

    Raises:
        ConfigError: ``overlap_tokens`` is negative or not below ``chunk_tokens``.
    """
    check_window(chunk_tokens, overlap_tokens)
    num_tokens = len(offsets)
    if num_tokens == 0:
        return [Window(0, 0, 0, num_chars)]
    is_boundary = _character_boundaries(offsets)

    def boundary_at_or_before(token: int) -> int:
        while not is_boundary[token]:
            token -= 1
        return token

    def boundary_after(token: int) -> int:
        token += 1
        while not is_boundary[token]:
            token += 1
        return token

    def window_end(first: int) -> int:
        end = boundary_at_or_before(min(first + chunk_tokens, num_tokens))
        return end if end > first else boundary_after(first)

    def char(token: int) -> int:
        return 0 if token == 0 else num_chars if token == num_tokens else offsets[token][0]

    first, end = 0, window_end(0)
    windows = [Window(first, end, char(first), char(end))]
    while end < num_tokens:
        first = boundary_at_or_before(max(end - overlap_tokens, 0))
        # A long character at the end may leave no room for the whole overlap: every window must bring new tokens.
        while window_end(first) <= end:
            first = boundary_after(first)
        end = window_end(first)
        windows.append(Window(first, end, char(first), char(end)))
    return windows


def cut(document: Passage, tokenizer: Any, chunk_tokens: int, overlap_tokens: int) -> Iterator[Passage]:
    """The windows of a document as passages ``id#0``, ``id#1``, ...; the document itself where it fits one window."""
    offsets = token_offsets(document.text, tokenizer)
    if len(offsets) <= chunk_tokens:
        yield document
        return
    for i, window in enumerate(token_windows(offsets, len(document.text), chunk_tokens, overlap_tokens)):
        text = document.text[window.start : window.end]
        yield Passage(f"{document.id}#{i}", document.title, text, document.id, window.start)


def _character_boundaries(offsets: list[tuple[int, int]]) -> list[bool]:
    """Whether the document may be cut before token ``t``, for ``t`` in ``[0, num_tokens]``."""
    boundaries = [True]
    furthest = offsets[0][1]
    for start, end in offsets[1:]:
        boundaries.append(start >= furthest)
        furthest = max(furthest, end)
    return [*boundaries, True]
