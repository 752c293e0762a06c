"""Lexical and dense search in one call of ``retrieve_topk``, from many texts of many questions to evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops import Retrieved, gather_tokens, retrieve_topk
from pss_engine.ops.search import MAX_DEPTH, SHARE_BITS
from pss_engine.retrieval.bm25 import BM25
from pss_engine.retrieval.corpus import Corpus
from pss_engine.retrieval.dense import Dense
from pss_engine.retrieval.fusion import RRF_CONSTANT
from pss_engine.retrieval.passage import Hit, Passage
from pss_engine.retrieval.search import check_search, ranks_of, shares_of

RRF_DEPTH = 50
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Found:
    """Evidence of a batch of questions, still as rows of the corpus.

    Attributes:
        rows: [G, at most k] int32, best first, -1 where there is none.
        hits: the same as ids and scores: of the one ranking, or fused.
        rankings: of each question, the ranking of each of its texts by each index, by name and place of the text.
    """

    rows: Tensor
    hits: list[list[Hit]]
    rankings: list[dict[tuple[str, int], list[Hit]]]


class Hybrid:
    """One or two indexes over one corpus, searched together.

    Args:
        bm25, dense: at least one; over the same corpus.
        depth: passages of each ranking before they are fused.
        weights: of the BM25 and of the dense rankings in reciprocal rank fusion.

    Raises:
        ConfigError: no index, indexes of two corpora, or a depth or weight out of range.
    """

    def __init__(
        self,
        bm25: BM25 | None = None,
        dense: Dense | None = None,
        depth: int = RRF_DEPTH,
        weights: tuple[float, float] = (1.0, 1.0),
        constant: float = RRF_CONSTANT,
    ) -> None:
        indexes = [index for index in (bm25, dense) if index is not None]
        if not indexes or any(index.corpus is not indexes[0].corpus for index in indexes):
            raise ConfigError("Hybrid needs a BM25 index, a dense one, or both over the same corpus")
        if not 1 <= depth <= MAX_DEPTH:
            raise ConfigError(f"depth is {depth}; it must be 1 to {MAX_DEPTH}")
        if not (constant >= 0 and all(0 < weight < float("inf") for weight in weights)):
            raise ConfigError(f"weights {weights} must be above 0 and finite, constant {constant} 0 or more")
        self.bm25, self.dense, self.depth, self.weights, self.constant = bm25, dense, depth, weights, constant

    @property
    def corpus(self) -> Corpus:
        return (self.bm25 or self.dense).corpus  # type: ignore[union-attr]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Each query by itself. See :class:`Searcher`."""
        check_search(queries, k)
        return self.retrieve([[query] for query in queries], k).hits if queries else []

    def mask(self, allowed: Callable[[Passage], bool]) -> Mask:
        """[rows]: where a passage may be found (of a tenant, of a date); for ``retrieve``."""
        present = self.corpus.present
        return np.array([bool(held) and allowed(self.corpus[row]) for row, held in enumerate(present)], np.bool_)

    def retrieve(self, questions: Sequence[Sequence[str]], k: int, masks: Sequence[Mask | None] | None = None) -> Found:
        """The ``k`` best passages of each question, which may search with several texts (raw query, clue, card).

        One call of the op scores all texts of all questions. Where a question has one text and one index, its hits
        are that ranking; else all its rankings are fused by reciprocal rank.

        Args:
            masks: for each question the rows that may be found, or None.

        Raises:
            ConfigError: ``k`` below 1, a question without a text, or a mask that is not [rows].
        """
        check_search([], k)
        if any(not texts or isinstance(texts, str) for texts in questions):
            raise ConfigError("every question needs a list of at least one text to search with")
        k = min(k, self.corpus.num_rows)
        if not questions:
            return Found(torch.zeros(0, k, dtype=torch.int32), [], [])
        texts = [text for question in questions for text in question]
        owners = [group for group, question in enumerate(questions) for _ in question]
        indexes = [index for index in (self.dense, self.bm25) if index is not None]
        lists_of = [len(question) * len(indexes) for question in questions]
        depth = min(max(k, self.depth if max(lists_of, default=1) > 1 else 0), self.corpus.num_rows)
        if depth > MAX_DEPTH:
            raise ConfigError(f"k is {k}; a ranking holds at most {MAX_DEPTH} passages")
        dense, scales = (None, torch.ones(0)) if self.dense is None else self.dense.dense(texts)
        sparse = None if self.bm25 is None else self.bm25.sparse(texts)
        found: Retrieved = retrieve_topk(
            ranks_of(self.corpus),
            dense,
            sparse,
            torch.tensor(owners * len(indexes), dtype=torch.int32),
            self._shares(len(texts), depth),
            *self._masks(len(questions), masks),
            k,
        )
        scores = found.list_scores.clone()
        scores[: len(scales)] *= scales[:, None]
        rankings = self._rankings(questions, found.list_passages, scores)
        hits = [
            next(iter(own.values()))[:k] if len(own) == 1 else self._hits(rows, (shares * 2.0**-SHARE_BITS))
            for own, rows, shares in zip(rankings, found.passages, found.shares.double(), strict=True)
        ]
        return Found(found.passages, hits, rankings)

    def prompts(self, found: Found, before: list[Tensor], after: list[Tensor], separator: Tensor) -> list[Tensor]:
        """Token ids of the answer prompts, see ``gather_tokens``. Raises ConfigError if the corpus holds none."""
        if not self.corpus.tokenizer:
            raise ConfigError("the corpus holds no token ids; load it with the model's tokenizer")
        tokens, starts = self.corpus.tokens
        return gather_tokens(found.rows, torch.from_numpy(tokens), torch.from_numpy(starts), before, after, separator)

    def _shares(self, num_texts: int, depth: int) -> Tensor:
        lexical, dense = self.weights
        held = [weight for weight, index in ((dense, self.dense), (lexical, self.bm25)) if index is not None]
        return shares_of(depth, self.constant, tuple(held), num_texts)

    def _masks(self, num_groups: int, masks: Sequence[Mask | None] | None) -> tuple[Tensor | None, Tensor]:
        """Each mask once, and which one each question has. Rows of removed passages are masked for all."""
        present = self.corpus.present
        rows: list[Mask] = [] if present.all() else [present]
        ids = [len(rows) - 1] * num_groups
        known: dict[int, int] = {}
        for group, mask in enumerate(masks or []):
            if mask is None:
                continue
            if mask.shape != present.shape or mask.dtype != np.bool_:
                raise ConfigError(
                    f"mask {group} is {mask.dtype} {list(mask.shape)}; expected bool {list(present.shape)}"
                )
            if id(mask) not in known:
                known[id(mask)] = len(rows)
                rows.append(mask & present)
            ids[group] = known[id(mask)]
        stacked = torch.from_numpy(np.stack(rows)) if rows else None
        return stacked, torch.tensor(ids, dtype=torch.int32)

    def _rankings(
        self, questions: Sequence[Sequence[str]], rows: Tensor, scores: Tensor
    ) -> list[dict[tuple[str, int], list[Hit]]]:
        rankings: list[dict[tuple[str, int], list[Hit]]] = [{} for _ in questions]
        number = 0
        for name, index in (("dense", self.dense), ("bm25", self.bm25)):
            for group, question in enumerate(questions if index is not None else []):
                for text in range(len(question)):
                    rankings[group][name, text] = self._hits(rows[number], scores[number])
                    number += 1
        return rankings

    def _hits(self, rows: Tensor, scores: Tensor) -> list[Hit]:
        held = [row for row in rows.tolist() if row >= 0]
        return [Hit(*pair) for pair in zip(self.corpus.ids(held), scores.tolist(), strict=False)]
