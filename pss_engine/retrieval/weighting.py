"""The BM25 formulas: what a term adds to the score of a passage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pss_engine.errors import ConfigError
from pss_engine.retrieval.postings import Counts

VARIANTS = ("lucene", "atire", "bm25+")


@dataclass(frozen=True)
class Weighting:
    """Weight of term t in a passage d that holds it ``tf`` times, ``K = k1 (1 - b + b len(d) / mean_len)``::

        lucene  ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + K)
        atire   ln(N / df) * tf (k1 + 1) / (tf + K)
        bm25+   ln((N + 1) / df) * (delta + tf (k1 + 1) / (tf + K))

    N passages, df of them hold t. Sources: Kamphuis et al. (ECIR 2020); Lv and Zhai (CIKM 2011), whose lower bound
    ``delta`` counts for the terms that a passage holds.

    Attributes:
        k1: saturation of the term frequency, 0 or more.
        b: strength of the length normalisation, 0 to 1.
        delta: 0 or more; used by ``bm25+`` alone.

    Raises:
        ConfigError: a parameter out of range.
    """

    variant: str = "lucene"
    k1: float = 1.2
    b: float = 0.75
    delta: float = 1.0

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ConfigError(f"BM25 variant {self.variant!r} is unknown; choices: {', '.join(VARIANTS)}")
        if not (self.k1 >= 0 and np.isfinite(self.k1)):
            raise ConfigError(f"BM25 k1 is {self.k1}; it must be 0 or more and finite")
        if not 0 <= self.b <= 1:
            raise ConfigError(f"BM25 b is {self.b}; it must be from 0 to 1")
        if not (self.delta >= 0 and np.isfinite(self.delta)):
            raise ConfigError(f"BM25 delta is {self.delta}; it must be 0 or more and finite")

    def weights(self, postings: Counts, lengths: npt.NDArray[np.int64], num_passages: int) -> npt.NDArray[np.float32]:
        """Float32, one for each posting, computed in float64.

        Args:
            lengths: [rows] terms of each row.
            num_passages: N; rows without a passage have length 0.
        """
        df = np.diff(postings.indptr)
        held = np.maximum(df, 1)  # terms that no passage holds any more have no postings
        if self.variant == "lucene":
            idf = np.log1p((num_passages - df + 0.5) / (df + 0.5))
        elif self.variant == "atire":
            idf = np.log(num_passages / held)
        else:
            idf = np.log((num_passages + 1) / held)
        relative = lengths[postings.rows] / max(float(lengths.sum()) / num_passages, 1e-9)
        counts = postings.counts
        saturated = counts / (counts + self.k1 * (1 - self.b + self.b * relative))
        if self.variant != "lucene":
            saturated *= self.k1 + 1
        if self.variant == "bm25+":
            saturated += self.delta
        return (np.repeat(idf, df) * saturated).astype(np.float32)
