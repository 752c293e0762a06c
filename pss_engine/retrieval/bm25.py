"""BM25 over a corpus: weights are computed when the corpus changes; a search adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pss_engine.errors import ConfigError
from pss_engine.ops import SparseSearch
from pss_engine.retrieval.analyzer import Analyzer
from pss_engine.retrieval.analyzer import analyzer as analyzer_named
from pss_engine.retrieval.corpus import Corpus
from pss_engine.retrieval.index_folder import IndexFolder
from pss_engine.retrieval.passage import Hit, Passage
from pss_engine.retrieval.postings import Counts, check_counts, count, keep, merge
from pss_engine.retrieval.search import check_search, hits_of, ranked, starts_of
from pss_engine.retrieval.weighting import Weighting

BATCH_PASSAGES = 8192


class BM25:
    """Lexical search.

    The score of a passage is the sum of :class:`Weighting` over the terms of the query; a term that the query repeats
    counts each time. A passage's title is indexed together with its text. The index follows its corpus: passages
    that are added are analysed at the next search, all others are not analysed again.

    Args:
        corpus: a ``Corpus``, or texts, whose passage ids are then ``"0"``, ``"1"``, ...
        k1, b, variant, delta: of :class:`Weighting`.
        analyzer: ``word``, ``stemmed``, ``tokens`` (with ``tokenizer``), or text to terms.
        tokenizer: of the answering model, for the analyzer ``tokens``.

    Raises:
        ConfigError: a parameter out of range, or no texts.
    """

    def __init__(
        self,
        corpus: Corpus | Sequence[str],
        k1: float = 1.2,
        b: float = 0.75,
        variant: str = "lucene",
        analyzer: str | Analyzer = "word",
        delta: float = 1.0,
        tokenizer: Any | None = None,
    ) -> None:
        self.weighting = Weighting(variant, k1, b, delta)
        self._name = analyzer if isinstance(analyzer, str) else getattr(analyzer, "__name__", "custom")
        self._analyze = analyzer_named(analyzer, tokenizer) if isinstance(analyzer, str) else analyzer
        if not isinstance(corpus, Corpus):
            if len(corpus) == 0:
                raise ConfigError("BM25 needs at least one text")
            corpus = Corpus(Passage(str(i), "", text) for i, text in enumerate(corpus))
        self.corpus = corpus
        self._vocabulary: dict[Any, int] = {}
        self._parts: list[Counts] = []
        self._lengths: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._version = -1
        self._follow()

    def __len__(self) -> int:
        return len(self.corpus)

    def knows(self, query: str) -> bool:
        """Whether a term of the query is in the corpus; if none is, the search finds nothing."""
        self._follow()
        terms = (self._vocabulary.get(term) for term in self._analyze(query))
        return any(term is not None and self._indptr[term] < self._indptr[term + 1] for term in terms)

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Score of every row for ``query``: float32 [rows]."""
        found = self.sparse([query])
        scores = np.zeros(self.corpus.num_rows, np.float32)
        for term in found.terms.tolist():
            span = slice(self._indptr[term], self._indptr[term + 1])
            scores[self._rows[span]] += self._weights[span]
        return scores

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The ``k`` best passages of each query, best first, equal scores by passage id.

        A passage that shares no term with the query is not returned, so a list can be shorter than ``k``.

        Raises:
            ConfigError: ``k`` below 1, or a single string in place of the list of queries.
        """
        check_search(queries, k)
        if not queries:
            return []
        found = ranked(self.corpus, None, self.sparse(queries), k)
        return hits_of(self.corpus, found.list_passages, found.list_scores)

    def sparse(self, queries: Sequence[str]) -> SparseSearch:
        """The queries as the op takes them; terms that no passage holds are left out."""
        self._follow()
        get = self._vocabulary.get
        terms = [[row for term in self._analyze(query) if (row := get(term)) is not None] for query in queries]
        return SparseSearch(
            torch.tensor([row for query in terms for row in query], dtype=torch.int32),
            starts_of([len(query) for query in terms]),
            *self._postings,
        )

    def save(self, folder: Path) -> None:
        """Write the counts; weights are computed when they are read."""
        self._follow()
        terms = list(self._vocabulary)
        if not all(isinstance(term, str) for term in terms):
            terms = [str(term) for term in terms]
        encoded = [term.encode("utf-8") for term in terms]
        postings = merge(self._parts, len(terms))
        IndexFolder(folder, "bm25").write(
            {
                "indptr": postings.indptr,
                "rows": postings.rows,
                "counts": postings.counts,
                "lengths": self._lengths,
                "terms.bytes": np.frombuffer(b"".join(encoded), np.uint8),
                "terms.lengths": np.array([len(term) for term in encoded], np.int64),
            },
            {"corpus": self.corpus.digest, "analyzer": self._name, "token_ids": self._name == "tokens"},
        )

    @classmethod
    def open(cls, folder: Path, corpus: Corpus, **settings: Any) -> BM25:
        """Map what ``save`` wrote. ``settings`` as for a new index.

        Raises:
            ConfigError: no index there, or one of another corpus or analyzer.
        """
        stored = IndexFolder(folder, "bm25")
        name = settings.get("analyzer", "word")
        meta = stored.check({"corpus": corpus.digest, "analyzer": name if isinstance(name, str) else name.__name__})
        arrays = stored.arrays(("indptr", "rows", "counts", "lengths", "terms.bytes", "terms.lengths"))
        index = cls.__new__(cls)
        index.weighting = Weighting(
            **{key: settings[key] for key in ("variant", "k1", "b", "delta") if key in settings}
        )
        index._name = meta["analyzer"]
        index._analyze = analyzer_named(name, settings.get("tokenizer")) if isinstance(name, str) else name
        index.corpus, index._version = corpus, -1
        data, starts = arrays["terms.bytes"].tobytes(), starts_of(arrays["terms.lengths"].tolist()).tolist()
        terms = (data[starts[i] : starts[i + 1]].decode("utf-8") for i in range(len(starts) - 1))
        index._vocabulary = {int(term) if meta["token_ids"] else term: i for i, term in enumerate(terms)}
        index._parts = [Counts(arrays["indptr"], arrays["rows"], arrays["counts"])]
        check_counts(index._parts[0], len(starts) - 1, corpus.num_rows, f"bm25 index {folder}")
        if len(arrays["lengths"]) != corpus.num_rows:
            raise ConfigError(f"bm25 index {folder} has {len(arrays['lengths'])} rows, the corpus {corpus.num_rows}")
        index._lengths = np.asarray(arrays["lengths"])
        index._follow()
        return index

    def _follow(self) -> None:
        corpus = self.corpus
        if self._version == corpus.version:
            return
        for start in range(len(self._lengths), corpus.num_rows, BATCH_PASSAGES):
            end = min(start + BATCH_PASSAGES, corpus.num_rows)
            present = corpus.present[start:end]
            documents = [
                self._analyze(corpus[row].rendered) if held else []
                for row, held in zip(range(start, end), present, strict=True)
            ]
            part, lengths = count(documents, start, self._vocabulary)
            self._parts.append(part)
            self._lengths = np.concatenate([self._lengths, lengths])
        self._parts = [merge(self._parts, len(self._vocabulary))]
        postings = keep(self._parts[0], corpus.present)
        lengths = np.where(corpus.present, self._lengths, 0)
        self._indptr, self._rows = postings.indptr, np.ascontiguousarray(postings.rows)
        self._weights = self.weighting.weights(postings, lengths, len(corpus))
        self._postings = tuple(map(torch.from_numpy, (self._indptr, self._rows, self._weights)))
        self._version = corpus.version
