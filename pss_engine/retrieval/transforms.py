"""Questions that a model writes anew before they are searched with: HyDE and RQ-RAG."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from pss_engine.errors import ConfigError
from pss_engine.retrieval.dense import Dense
from pss_engine.retrieval.fusion import rrf
from pss_engine.retrieval.passage import Hit
from pss_engine.retrieval.search import Searcher, check_search

Message = Mapping[str, str]
Generate = Callable[[Sequence[Sequence[Message]]], list[str]]
"""Conversations to answers, all in one batch."""

MAX_QUERIES = 4
_HYDE = "Write a passage that answers the question.\n\nQuestion: {query}\nPassage:"
_RQ = {
    "rewrite": "Rewrite the question so that a search engine finds its answer. Return only the question.",
    "decompose": f"Split the question into at most {MAX_QUERIES} simpler questions, one a line. Return only them.",
    "disambiguate": f"List at most {MAX_QUERIES} things that the question may mean, as questions, one a line.",
}
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s*")


class Transform(Protocol):
    """From each query to the texts that are searched with; at least one each."""

    def __call__(self, queries: Sequence[str]) -> list[list[str]]: ...


class HyDE:
    """Hypothetical passages (Gao et al., ACL 2023): the query and ``count`` passages that might answer it.

    Args:
        generate: with sampling on where ``count`` is above 1, or all are alike.
    """

    def __init__(self, generate: Generate, count: int = 1) -> None:
        if count < 1:
            raise ConfigError(f"count is {count}; it must be 1 or more")
        self._generate, self._count = generate, count

    def __call__(self, queries: Sequence[str]) -> list[list[str]]:
        prompts = [[{"role": "user", "content": _HYDE.format(query=q)}] for q in queries for _ in range(self._count)]
        written = _generated(self._generate, prompts)
        own = [written[i * self._count : (i + 1) * self._count] for i in range(len(queries))]
        return [
            [query, *(text.strip() for text in texts if text.strip())]
            for query, texts in zip(queries, own, strict=True)
        ]


class RQ:
    """Refined questions (Chan et al., COLM 2024): ``rewrite``, ``decompose`` or ``disambiguate``.

    Lines of the answer are the new questions, bullets and numbers taken off; where there are none, the query itself.
    """

    def __init__(self, generate: Generate, operation: str = "decompose") -> None:
        if operation not in _RQ:
            raise ConfigError(f"RQ-RAG operation {operation!r} is unknown; choices: {', '.join(_RQ)}")
        self._generate, self._operation = generate, operation

    def __call__(self, queries: Sequence[str]) -> list[list[str]]:
        ask = _RQ[self._operation]
        written = _generated(
            self._generate, [[{"role": "user", "content": f"{ask}\n\nQuestion: {query}"}] for query in queries]
        )
        most = 1 if self._operation == "rewrite" else MAX_QUERIES
        return [_lines(text)[:most] or [query] for query, text in zip(queries, written, strict=True)]


class Transformed:
    """Any search behind a transform: all texts of a query are searched with, their rankings fused by ``rrf``."""

    def __init__(self, searcher: Searcher, transform: Transform, depth: int = 50) -> None:
        self.searcher, self.transform, self.depth = searcher, transform, depth

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        check_search(queries, k)
        texts = self.transform(queries) if queries else []
        rankings = iter(self.searcher.search([text for own in texts for text in own], max(k, self.depth)))
        fused = [[next(rankings) for _ in own] for own in texts]
        return [own[0][:k] if len(own) == 1 else rrf(own, k=k) for own in fused]


class MeanVector:
    """Dense search with the mean of the vectors of a transform's texts, as HyDE defines it."""

    def __init__(self, dense: Dense, transform: Transform) -> None:
        self.dense, self.transform = dense, transform

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        check_search(queries, k)
        if not queries:
            return []
        texts = self.transform(queries)
        encoder = self.dense.encoder
        asked = encoder.queries(queries)
        means = [
            torch.cat([vector[None], encoder.passages(own[1:])]).mean(0)
            for vector, own in zip(asked, texts, strict=True)
        ]
        return self.dense.search_vectors(torch.stack(means), k)


def _generated(generate: Generate, prompts: Sequence[Sequence[Message]]) -> list[str]:
    written = generate(prompts)
    if len(written) != len(prompts):
        raise ConfigError(f"the generator gave {len(written)} answers to {len(prompts)} prompts")
    return written


def _lines(text: str) -> list[str]:
    return [line for raw in text.split("\n") if (line := _BULLET.sub("", raw).strip())]
