"""BM25 over a corpus: scores are computed once, when the index is built; a search adds them up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pss_engine.errors import ConfigError
from pss_engine.retrieval.analyzer import analyze
from pss_engine.retrieval.corpus import Corpus, Hit

VARIANTS = ("lucene",)


class BM25:
    """Lexical search with the BM25 of Lucene.

    The score of passage d for query q, summed over the terms t of q (a term that q repeats counts each time)::

        idf(t) = ln(1 + (N - df(t) + 0.5) / (df(t) + 0.5))
        score(d, q) = sum_t idf(t) * tf(t, d) / (tf(t, d) + k1 * (1 - b + b * len(d) / mean_len))

    N passages, df(t) of them hold t, tf(t, d) times t in d, len(d) terms in d. A passage's title is indexed together
    with its text. The postings are one CSR matrix [V terms, N passages]: ``indptr`` int64 [V + 1], ``passages`` int32
    and ``weights`` float32 [number of postings]; sums are float64.

    Args:
        corpus: a ``Corpus``, or texts, whose passage ids are then ``"0"``, ``"1"``, ...
        k1: saturation of the term frequency, 0 or more.
        b: strength of the length normalisation, 0 to 1.
        variant: ``"lucene"``.
        analyzer: text to terms, for passages and queries alike.

    Raises:
        ConfigError: a parameter out of range, or no texts.
    """

    def __init__(
        self,
        corpus: Corpus | Sequence[str],
        k1: float = 1.2,
        b: float = 0.75,
        variant: str = "lucene",
        analyzer: Callable[[str], list[str]] = analyze,
    ) -> None:
        if variant not in VARIANTS:
            raise ConfigError(f"BM25 variant {variant!r} is unknown; choices: {', '.join(VARIANTS)}")
        if not (k1 >= 0 and np.isfinite(k1)):
            raise ConfigError(f"BM25 k1 is {k1}; it must be 0 or more and finite")
        if not 0 <= b <= 1:
            raise ConfigError(f"BM25 b is {b}; it must be from 0 to 1")
        if len(corpus) == 0:
            raise ConfigError("BM25 needs at least one text")
        self._analyzer = analyzer
        if isinstance(corpus, Corpus):
            self._ids = [passage.id for passage in corpus]
            texts = [f"{passage.title}\n{passage.text}" for passage in corpus]
        else:
            self._ids = [str(i) for i in range(len(corpus))]
            texts = list(corpus)
        self._vocabulary: dict[str, int] = {}
        self._build([analyzer(text) for text in texts], k1, b)
        by_id = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        self._id_rank = np.empty(len(self._ids), dtype=np.int64)
        self._id_rank[by_id] = np.arange(len(self._ids))

    def __len__(self) -> int:
        return len(self._ids)

    def _build(self, documents: list[list[str]], k1: float, b: float) -> None:
        num_passages = len(documents)
        lengths = np.array([len(document) for document in documents], dtype=np.int64)
        vocabulary = self._vocabulary
        flat = np.fromiter(
            (vocabulary.setdefault(term, len(vocabulary)) for document in documents for term in document),
            dtype=np.int64,
            count=int(lengths.sum()),
        )
        owners = np.repeat(np.arange(num_passages), lengths)
        postings, counts = np.unique(flat * num_passages + owners, return_counts=True)
        terms, passages = np.divmod(postings, num_passages)
        num_holding = np.bincount(terms, minlength=len(vocabulary))
        self._indptr = np.concatenate(([0], np.cumsum(num_holding))).astype(np.int64)
        self._passages = passages.astype(np.int32)
        idf = np.log1p((num_passages - num_holding + 0.5) / (num_holding + 0.5))
        relative_length = lengths[passages] / max(float(lengths.mean()), 1e-9)
        saturation = counts / (counts + k1 * (1 - b + b * relative_length))
        self._weights = (idf[terms] * saturation).astype(np.float32)

    def scores(self, query: str) -> npt.NDArray[np.float64]:
        """Score of every passage for ``query``, in corpus order: float64 [N]."""
        scores = np.zeros(len(self), dtype=np.float64)
        for term in self._analyzer(query):
            row = self._vocabulary.get(term)
            if row is not None:
                span = slice(self._indptr[row], self._indptr[row + 1])
                scores[self._passages[span]] += self._weights[span]
        return scores

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The ``k`` best passages of each query, best first, equal scores by passage id.

        A passage that shares no term with the query is not returned, so a list can be shorter than ``k``.

        Raises:
            ConfigError: ``k`` below 1, or a single string in place of the list of queries.
        """
        if isinstance(queries, str):
            raise ConfigError("search takes a list of queries, got one string")
        if k < 1:
            raise ConfigError(f"k is {k}; it must be 1 or more")
        return [self._top(self.scores(query), k) for query in queries]

    def _top(self, scores: npt.NDArray[np.float64], k: int) -> list[Hit]:
        candidates = np.flatnonzero(scores > 0)
        if len(candidates) > k:
            # Every passage that ties with the k-th stays in, so that the ids decide and not the partition.
            kth = np.partition(scores[candidates], len(candidates) - k)[len(candidates) - k]
            candidates = candidates[scores[candidates] >= kth]
        order = np.lexsort((self._id_rank[candidates], -scores[candidates]))[:k]
        return [Hit(self._ids[i], float(scores[i])) for i in candidates[order]]
