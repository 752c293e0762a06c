"""Finding evidence: a corpus of passages, searches over it, and their fusion."""

from __future__ import annotations

from pss_engine.retrieval.bm25 import BM25
from pss_engine.retrieval.corpus import Corpus
from pss_engine.retrieval.dense import Dense
from pss_engine.retrieval.encoder import Encoder
from pss_engine.retrieval.fusion import Fused, record_wise, rrf, weighted
from pss_engine.retrieval.hybrid import Found, Hybrid
from pss_engine.retrieval.passage import Hit, Passage
from pss_engine.retrieval.search import Searcher
from pss_engine.retrieval.selection import select_records

__all__ = [
    "BM25",
    "Corpus",
    "Dense",
    "Encoder",
    "Found",
    "Fused",
    "Hit",
    "Hybrid",
    "Passage",
    "Searcher",
    "record_wise",
    "rrf",
    "select_records",
    "weighted",
]
