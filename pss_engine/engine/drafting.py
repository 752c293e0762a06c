"""Drafts without a draft model: what a state has said before, and what the query says, is likely said again."""

from __future__ import annotations

from collections.abc import Sequence

START = -1
"""Mark before a source and before the first generated token; no token has this id."""


class Drafter:
    """Continues the generated tokens by looking up their last n-gram in fixed sources and in themselves.

    The longest suffix of the generated tokens (at most ``max_ngram``) that occurs in a source wins; among its
    occurrences the one in the earliest source, then the latest in it. Before the first token the first source is
    proposed from its beginning. Integers only.

    Args:
        sources: the state's readout first, then the query's tokens.
        max_draft_tokens: length of a proposal at most.
        max_ngram: longest suffix that is looked up.
    """

    def __init__(self, sources: Sequence[Sequence[int]], max_draft_tokens: int, max_ngram: int = 4) -> None:
        self._sources = [[START, *source] for source in sources if source]
        self._max_draft_tokens, self._max_ngram = max_draft_tokens, max_ngram

    def propose(self, generated: Sequence[int], limit: int) -> list[int]:
        """At most ``limit`` tokens that may follow ``generated``; empty where nothing matches."""
        limit = min(limit, self._max_draft_tokens)
        if limit < 1:
            return []
        tail = [START, *generated][-self._max_ngram :]
        for length in range(len(tail), 0, -1):
            suffix = tail[-length:]
            for source in [*self._sources, list(generated)]:
                at = _last_occurrence(source, suffix)
                if at >= 0:
                    return source[at + length : at + length + limit]
        return []


def _last_occurrence(source: Sequence[int], suffix: Sequence[int]) -> int:
    """Start of the last occurrence that something follows; -1 where there is none."""
    for at in range(len(source) - len(suffix) - 1, -1, -1):
        if source[at] == suffix[0] and list(source[at : at + len(suffix)]) == list(suffix):
            return at
    return -1
