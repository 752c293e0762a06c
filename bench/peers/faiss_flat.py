"""faiss with a flat index: every vector compared, in float32."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import torch

NAME = f"faiss-flat {faiss.__version__}"
Array = npt.NDArray[Any]


class Flat:
    def __init__(self, vectors: npt.NDArray[np.float32]) -> None:
        faiss.omp_set_num_threads(torch.get_num_threads())
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def search(self, queries: npt.NDArray[np.float32], k: int) -> Array:
        """[B, k] rows, best first."""
        rows: Array = self._index.search(queries, k)[1]
        return rows
