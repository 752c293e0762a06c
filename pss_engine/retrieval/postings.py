"""How often each term occurs in each passage, kept term by term; what is added later is merged, not counted again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pss_engine.errors import ConfigError
from pss_engine.retrieval.columns import Array


class Counts(NamedTuple):
    """Postings as CSR [V, rows].

    Attributes:
        indptr: [V + 1] int64.
        rows: int32, ascending within a term.
        counts: int32, of the term in the row.
    """

    indptr: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]


EMPTY = Counts(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32))


def count(documents: Sequence[Sequence[Any]], first_row: int, vocabulary: dict[Any, int]) -> tuple[Counts, Array]:
    """Postings and lengths of documents in the rows from ``first_row`` on; new terms are added to ``vocabulary``."""
    lengths = np.array([len(document) for document in documents], np.int64)
    flat = np.fromiter(
        (vocabulary.setdefault(term, len(vocabulary)) for document in documents for term in document),
        np.int64,
        int(lengths.sum()),
    )
    owners = np.repeat(np.arange(len(documents)), lengths)
    keys, counts = np.unique(flat * max(1, len(documents)) + owners, return_counts=True)
    terms, rows = np.divmod(keys, max(1, len(documents)))
    indptr = _starts(np.bincount(terms, minlength=len(vocabulary)))
    return Counts(indptr, (rows + first_row).astype(np.int32), counts.astype(np.int32)), lengths


def merge(parts: Iterable[Counts], num_terms: int) -> Counts:
    """One CSR of parts whose rows follow each other."""
    held = [part for part in parts if len(part.rows)]
    sizes = [_padded(np.diff(part.indptr), num_terms) for part in held]
    indptr = _starts(np.sum(sizes, axis=0) if sizes else np.zeros(num_terms, np.int64))
    if len(held) == 1:
        return Counts(indptr, held[0].rows, held[0].counts)
    rows, counts = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.int32)
    filled = indptr[:-1].copy()
    for part, size in zip(held, sizes, strict=True):
        # Posting i of term t lies i - part.indptr[t] behind the first place that is free for t.
        places = np.repeat(filled - _starts(size)[:-1], size) + np.arange(len(part.rows))
        rows[places], counts[places] = part.rows, part.counts
        filled += size
    return Counts(indptr, rows, counts)


def keep(postings: Counts, present: npt.NDArray[np.bool_]) -> Counts:
    """The postings of rows that are present."""
    if present.all():
        return postings
    kept = present[postings.rows]
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)])
    return Counts(before[postings.indptr], postings.rows[kept], postings.counts[kept])


def check_counts(postings: Counts, num_terms: int, num_rows: int, where: str) -> None:
    """Raises ConfigError unless these are a CSR [num_terms, num_rows]; else a search would read beyond their ends."""
    indptr, rows, counts = postings
    inner = np.ones(max(len(rows) - 1, 0), np.bool_)
    if len(indptr) == num_terms + 1 and indptr[0] == 0 and indptr[-1] == len(rows) and (np.diff(indptr) >= 0).all():
        ends = indptr[1:-1][(indptr[1:-1] > 0) & (indptr[1:-1] < len(rows))]
        inner[ends - 1] = False  # where a new term begins, rows may fall
        ascending = (np.diff(rows)[inner] > 0).all()
        if ascending and len(counts) == len(rows) and (not len(rows) or (rows.min() >= 0 and rows.max() < num_rows)):
            return
    raise ConfigError(f"{where} is damaged: its postings are not those of {num_terms} terms in {num_rows} passages")


def _starts(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _padded(sizes: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    return np.concatenate([sizes, np.zeros(length - len(sizes), np.int64)])
