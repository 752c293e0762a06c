"""Finding evidence: a corpus of passages, searches over it, and their fusion."""

from __future__ import annotations

from pss_engine.retrieval.bm25 import BM25
from pss_engine.retrieval.corpus import Corpus, Hit, Passage
from pss_engine.retrieval.fusion import rrf

__all__ = ["BM25", "Corpus", "Hit", "Passage", "rrf"]
