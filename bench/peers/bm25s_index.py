"""bm25s, as its README uses it: eager sparse scores, numpy."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Sequence
from typing import Any

import bm25s
import numpy as np
import numpy.typing as npt
import torch

NAME = f"bm25s {importlib.metadata.version('bm25s')}"


class Index:
    """Lucene's BM25 over documents that are lists of terms."""

    def __init__(self, documents: Sequence[list[str]], k1: float = 1.2, b: float = 0.75) -> None:
        self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
        self._index.index(list(documents), show_progress=False)
        self._threads: dict[int, int] = {}

    def search(self, queries: Sequence[list[str]], k: int) -> npt.NDArray[Any]:
        """[B, k] rows, best first, -1 where no term is shared.

        With or without threads, whichever a first look found faster for so many queries.
        """
        if len(queries) not in self._threads:
            choices = (0, torch.get_num_threads())
            seconds = {threads: min(self._timed(queries, k, threads) for _ in range(2)) for threads in choices}
            self._threads[len(queries)] = min(seconds, key=seconds.__getitem__)
        return self._search(queries, k, self._threads[len(queries)])

    def scores(self, query: list[str]) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self._index.get_scores(query)
        return found

    def _search(self, queries: Sequence[list[str]], k: int, threads: int) -> npt.NDArray[Any]:
        found = self._index.retrieve(list(queries), k=k, show_progress=False, n_threads=threads)
        rows: npt.NDArray[Any] = np.where(found.scores > 0, found.documents, -1)
        return rows

    def _timed(self, queries: Sequence[list[str]], k: int, threads: int) -> float:
        start = time.perf_counter()
        self._search(queries, k, threads)
        return time.perf_counter() - start
