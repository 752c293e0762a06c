"""Two levels: summaries choose documents, their passages are ranked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pss_engine.errors import ConfigError
from pss_engine.retrieval.corpus import Corpus
from pss_engine.retrieval.hybrid import Hybrid
from pss_engine.retrieval.passage import Hit, Passage
from pss_engine.retrieval.search import Searcher, check_search

Summarize = Callable[[Sequence[str]], str]
"""Texts to one text: a model's, or :func:`lead`."""

MakeIndex = Callable[[Corpus], Searcher]
LEAD_WORDS = 64


def lead(texts: Sequence[str], max_words: int = LEAD_WORDS) -> str:
    """The beginning of every text, ``max_words`` in all: a summary without a model."""
    share = max(1, max_words // max(1, len(texts)))
    return " ".join(" ".join(text.split()[:share]) for text in texts)


class SummaryLeaf:
    """Hierarchical search (PSS, section 3: summary-leaf).

    A question first ranks the summaries of all documents, then the passages of the best ``num_documents`` among
    themselves. Passages of one ``doc_id`` are a document; its summary is made of their texts.

    Args:
        leaves: the search over passages; its corpus gives the documents.
        make_index: the search over summaries, such as ``BM25``.
    """

    def __init__(
        self, leaves: Hybrid, make_index: MakeIndex, summarize: Summarize = lead, num_documents: int = 8
    ) -> None:
        if num_documents < 1:
            raise ConfigError(f"num_documents is {num_documents}; it must be 1 or more")
        self.leaves, self.num_documents = leaves, num_documents
        self._make_index, self._summarize = make_index, summarize
        self._version = -1
        self._follow()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        check_search(queries, k)
        self._follow()
        documents = self._summaries.search(queries, self.num_documents)
        masks = [self._mask([hit.passage_id for hit in hits]) for hits in documents]
        return self.leaves.retrieve([[query] for query in queries], k, masks).hits

    def _follow(self) -> None:
        corpus = self.leaves.corpus
        if self._version == corpus.version:
            return
        self._rows: dict[str, list[int]] = {}
        for row in corpus.rows:
            self._rows.setdefault(corpus[row].doc_id, []).append(row)
        self._summaries = self._make_index(
            Corpus(
                Passage(doc_id, corpus[rows[0]].title, self._summarize([corpus[row].text for row in rows]))
                for doc_id, rows in self._rows.items()
            )
        )
        self._version = corpus.version

    def _mask(self, doc_ids: Sequence[str]) -> np.ndarray:
        mask = np.zeros(self.leaves.corpus.num_rows, np.bool_)
        for doc_id in doc_ids:
            mask[self._rows[doc_id]] = True
        return mask
