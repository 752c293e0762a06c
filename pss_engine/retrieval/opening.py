"""From the name of a search to its indexes: opened where they were saved beside the corpus, built where not."""

from __future__ import annotations

from pathlib import Path

from pss_engine.errors import ConfigError
from pss_engine.retrieval.bm25 import BM25
from pss_engine.retrieval.corpus import Corpus
from pss_engine.retrieval.dense import Dense, Progress
from pss_engine.retrieval.encoder import DEFAULT_ENCODER, Encoder
from pss_engine.retrieval.hybrid import Hybrid

SEARCHES = ("bm25", "dense", "hybrid")


def open_search(
    corpus: Corpus,
    search: str = "bm25",
    folder: Path | None = None,
    encoder: str = DEFAULT_ENCODER,
    progress: Progress | None = None,
) -> Hybrid:
    """The search ``bm25``, ``dense`` or ``hybrid`` (both, fused by reciprocal rank) over a corpus.

    Args:
        folder: where ``save_indexes`` may have put them; None or nothing there: they are built.
        progress: ``progress(passages done, passages in all)`` while passages are encoded.

    Raises:
        ConfigError: an unknown search, or a saved index of another corpus or encoder.
    """
    if search not in SEARCHES:
        raise ConfigError(f"search {search!r} is unknown; choices: {', '.join(SEARCHES)}")
    bm25 = dense = None
    if search != "dense":
        saved = folder is not None and (folder / "bm25.json").exists()
        bm25 = BM25.open(folder, corpus) if folder is not None and saved else BM25(corpus)
    if search != "bm25":
        model = Encoder(encoder)
        saved = folder is not None and (folder / "dense.json").exists()
        dense = (
            Dense.open(folder, corpus, model)
            if folder is not None and saved
            else Dense(corpus, model, progress=progress)
        )
    return Hybrid(bm25, dense)


def save_indexes(search: Hybrid, folder: Path) -> None:
    """Write the indexes of a search beside its corpus."""
    for index in (search.bm25, search.dense):
        if index is not None:
            index.save(folder)
