"""Dense search: passages and queries as vectors, all of them compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pss_engine.errors import ConfigError
from pss_engine.ops import DenseSearch
from pss_engine.retrieval.corpus import Corpus
from pss_engine.retrieval.encoder import Encoder
from pss_engine.retrieval.index_folder import IndexFolder
from pss_engine.retrieval.passage import Hit
from pss_engine.retrieval.quantize import store_as
from pss_engine.retrieval.search import check_search, hits_of, present_mask, ranked

Progress = Callable[[int, int], None]


class Dense:
    """Exact search by inner product over the vectors of an encoder.

    The index follows its corpus: passages that are added are encoded at the next search, no others again.

    Args:
        vector_type: ``int8`` (a byte a feature, one scale a passage), ``float16`` or ``float32``.
        vectors: [rows, dim] float32, where the encoder's vectors of all passages are known already.
        progress: ``progress(passages done, passages in all)`` while passages are encoded.

    Raises:
        ConfigError: an unknown vector type, vectors of another shape, or vectors with NaN.
    """

    def __init__(
        self,
        corpus: Corpus,
        encoder: Encoder,
        vector_type: str = "int8",
        vectors: Tensor | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.corpus, self.encoder, self.vector_type = corpus, encoder, vector_type
        known = torch.zeros(0, encoder.dim) if vectors is None else vectors
        if known.dim() != 2 or known.shape[1] != encoder.dim or len(known) not in (0, corpus.num_rows):
            raise ConfigError(f"vectors are {list(known.shape)}; expected [{corpus.num_rows}, {encoder.dim}]")
        self._vectors, self._scales = store_as(known, vector_type)
        self._follow(progress)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The ``k`` passages of the highest inner product with each query, equal ones by passage id.

        Raises:
            ConfigError: ``k`` below 1, or a single string in place of the list of queries.
        """
        check_search(queries, k)
        return self.search_vectors(self.encoder.queries(queries), k) if queries else []

    def search_vectors(self, vectors: Tensor, k: int) -> list[list[Hit]]:
        """``search`` with vectors [B, dim] float32 in place of texts. Raises ConfigError for a NaN too."""
        check_search([], k)
        search, scales = self._dense(vectors)
        found = ranked(self.corpus, search, None, k, present_mask(self.corpus))
        return hits_of(self.corpus, found.list_passages, found.list_scores * scales[:, None])

    def dense(self, queries: Sequence[str]) -> tuple[DenseSearch, Tensor]:
        """The queries as the op takes them, and what their scores are to be multiplied with: [B] float32."""
        return self._dense(self.encoder.queries(queries))

    def _dense(self, queries: Tensor) -> tuple[DenseSearch, Tensor]:
        self._follow()
        vectors, scales = store_as(queries, "int8" if self._scales is not None else "float32")
        return DenseSearch(vectors, self._vectors, self._scales), torch.ones(len(vectors)) if scales is None else scales

    def save(self, folder: Path) -> None:
        self._follow()
        arrays = {"vectors": self._vectors.numpy()}
        if self._scales is not None:
            arrays["scales"] = self._scales.numpy()
        meta = {"corpus": self.corpus.digest, "encoder": self.encoder.fingerprint, "vector_type": self.vector_type}
        IndexFolder(folder, "dense").write(arrays, meta)

    @classmethod
    def open(cls, folder: Path, corpus: Corpus, encoder: Encoder, vector_type: str = "int8") -> Dense:
        """Map what ``save`` wrote. Raises ConfigError for an index of another corpus, encoder or vector type."""
        stored = IndexFolder(folder, "dense")
        stored.check({"corpus": corpus.digest, "encoder": encoder.fingerprint, "vector_type": vector_type})
        arrays = stored.arrays(("vectors", "scales") if vector_type == "int8" else ("vectors",))
        shape, dtype = arrays["vectors"].shape, arrays["vectors"].dtype.name
        scales = arrays.get("scales")
        fits = scales is None or (scales.shape == shape[:1] and bool((scales > 0).all() and np.isfinite(scales).all()))
        if shape != (corpus.num_rows, encoder.dim) or dtype != vector_type or not fits:
            raise ConfigError(f"dense index {folder} is damaged: {dtype} {list(shape)} or its scales do not fit")
        index = cls.__new__(cls)
        index.corpus, index.encoder, index.vector_type = corpus, encoder, vector_type
        index._vectors = torch.from_numpy(arrays["vectors"])
        index._scales = torch.from_numpy(arrays["scales"]) if "scales" in arrays else None
        return index

    def _follow(self, progress: Progress | None = None) -> None:
        first, corpus = len(self._vectors), self.corpus
        if first == corpus.num_rows:
            return
        present = corpus.present
        texts = [corpus[row].rendered if present[row] else "" for row in range(first, corpus.num_rows)]
        vectors, scales = store_as(self.encoder.passages(texts, progress), self.vector_type)
        self._vectors = torch.cat([self._vectors, vectors])
        if self._scales is not None and scales is not None:
            self._scales = torch.cat([self._scales, scales])
