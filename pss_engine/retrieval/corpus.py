"""The external corpus: passages in rows that never move, found by row or by id, with the token ids of a model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pss_engine.errors import ConfigError
from pss_engine.retrieval.chunking import CHUNK_TOKENS, OVERLAP_TOKENS, check_window, cut
from pss_engine.retrieval.corpus_folder import CorpusFolder, is_corpus_folder
from pss_engine.retrieval.passage import Hit, Passage
from pss_engine.retrieval.sources import read_documents, source_bytes
from pss_engine.retrieval.table import PassageTable, empty_tokens, to_columns
from pss_engine.retrieval.tokens import fingerprint_of, token_ids

BATCH_PASSAGES = 512

Progress = Callable[[int, int], None]
"""``progress(bytes of the source that are done, bytes in all)``."""

__all__ = ["Corpus", "Hit", "Passage", "Progress"]


class Corpus:
    """Passages with unique ids, in the order given.

    A passage keeps its row for as long as the corpus lives: ``add`` appends rows, ``remove`` leaves holes. Indexes
    over a corpus follow it by its ``version`` and do again only what is new.

    Attributes:
        version: grows with every change.
        tokenizer: fingerprint of the tokenizer whose token ids are held; empty = none are.

    Raises:
        ConfigError: no passages, or two with the same id.
    """

    version: int
    tokenizer: str
    _tables: list[PassageTable]
    _removed: set[int]
    _row_of: dict[str, int]

    def __init__(self, passages: Iterable[Passage]) -> None:
        rows = list(passages)
        self._take([PassageTable(to_columns(rows, empty_tokens(len(rows))))], "")

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        tokenizer: Any | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
        overlap_tokens: int = OVERLAP_TOKENS,
        progress: Progress | None = None,
    ) -> Corpus:
        """Read a JSONL file (``id``, ``title``, ``text`` a line), a folder of ``.md`` and ``.txt`` files, or an index.

        A folder is read recursively in the order of the relative paths, which are the ids; a document's title is its
        first ``# heading``, or the file's name. Hidden and blank files are left out. A document of more than
        ``chunk_tokens`` tokens is cut into windows of that many, ``overlap_tokens`` of them shared with the window
        before; ``chunking.PRESETS`` names usual pairs. A folder that ``build`` or ``save`` wrote is opened as it is.

        Args:
            tokenizer: a fast Hugging Face tokenizer, of the model that will read the evidence; None leaves documents
                whole and without token ids.

        Raises:
            ConfigError: no such file, nothing in it, a line that is not a passage (its number is named), an id that
                occurs twice, ``overlap_tokens`` not below ``chunk_tokens``, or an index of another tokenizer.
        """
        check_window(chunk_tokens, overlap_tokens)
        source = Path(path)
        if is_corpus_folder(source):
            return cls.open(source, tokenizer)
        tables = []
        for passages, ids in _batches(source, tokenizer, chunk_tokens, overlap_tokens, progress):
            tables.append(to_columns(passages, ids))
        joined = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
        return cls._of([PassageTable(joined)], fingerprint_of(tokenizer))

    @classmethod
    def build(
        cls,
        source: str | os.PathLike[str],
        folder: str | os.PathLike[str],
        tokenizer: Any | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
        overlap_tokens: int = OVERLAP_TOKENS,
        progress: Progress | None = None,
    ) -> Corpus:
        """Like ``load``, for a source larger than memory: passages go to ``folder`` in batches, and are mapped from
        there. What fails half way, or is interrupted, leaves no folder.

        Raises:
            ConfigError: as ``load``; or ``folder`` exists.
        """
        check_window(chunk_tokens, overlap_tokens)
        with CorpusFolder.create(Path(folder)) as target:
            settings = {"chunk_tokens": chunk_tokens, "overlap_tokens": overlap_tokens} if tokenizer else {}
            sha, seen = hashlib.sha256(), set[str]()
            with target.table() as table:
                for passages, ids in _batches(Path(source), tokenizer, chunk_tokens, overlap_tokens, progress):
                    for passage in passages:
                        if passage.id in seen:
                            raise _twice(passage.id)
                        seen.add(passage.id)
                        sha.update(_line(passage))
                    table.append(passages, ids)
            target.describe(sha.hexdigest(), len(seen), fingerprint_of(tokenizer), settings)
        return cls.open(folder, tokenizer)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], tokenizer: Any | None = None) -> Corpus:
        """Map a corpus that ``build`` or ``save`` wrote.

        Raises:
            ConfigError: no corpus there, a damaged one, or token ids of another tokenizer than ``tokenizer``.
        """
        source = CorpusFolder(Path(folder))
        meta = source.read()
        wanted = fingerprint_of(tokenizer)
        if wanted and wanted != meta["tokenizer"]:
            raise ConfigError(
                f"corpus {folder} holds token ids of tokenizer {meta['tokenizer'][:12] or 'none'}, the model's is"
                f" {wanted[:12]}; build it again with this model"
            )
        corpus = cls._of([PassageTable.map(source.path)], meta["tokenizer"])
        if len(corpus) != meta["num_passages"]:
            raise ConfigError(f"corpus {folder}: {meta['num_passages']} passages were written, {len(corpus)} are there")
        corpus.__dict__["digest"] = meta["digest"]
        return corpus

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the passages that are not removed to a new folder. Raises ConfigError if it exists."""
        with CorpusFolder.create(Path(folder)) as target:
            with target.table() as table:
                rows = self.rows
                for start in range(0, len(rows), BATCH_PASSAGES):
                    batch = rows[start : start + BATCH_PASSAGES]
                    table.append([self[row] for row in batch], [self.token_ids(row) for row in batch])
            target.describe(self.digest, len(self), self.tokenizer, {})

    def verify(self) -> None:
        """Read every passage and compare the digest. Raises ConfigError if a stored corpus was changed."""
        known, found = self.digest, _digest(self)
        if found != known:
            raise ConfigError(f"the corpus is damaged: its digest is {found[:12]}, {known[:12]} was written")

    def add(self, passages: Iterable[Passage], tokenizer: Any | None = None) -> None:
        """Append passages; nothing of the others is done again.

        Args:
            tokenizer: needed where the corpus holds token ids.

        Raises:
            ConfigError: an id that is taken, or another tokenizer; nothing is added then.
        """
        added = list(passages)
        if not added:
            return
        if fingerprint_of(tokenizer) != self.tokenizer:
            raise ConfigError("passages must be added with the tokenizer of the corpus, whose token ids it holds")
        row_of = {passage.id: self.num_rows + i for i, passage in enumerate(added)}
        if taken := [
            passage.id
            for i, passage in enumerate(added)
            if passage.id in self._row_of or row_of[passage.id] != self.num_rows + i
        ]:
            raise _twice(taken[0])
        ids = token_ids(added, tokenizer) if tokenizer else empty_tokens(len(added))
        self._tables.append(PassageTable(to_columns(added, ids)))
        self._row_of |= row_of
        self._changed()

    def remove(self, passage_ids: Iterable[str]) -> None:
        """Take passages out; the rows of the others stay. Raises ConfigError for an unknown id; nothing is removed."""
        row_of = {passage_id: self.row_of(passage_id) for passage_id in passage_ids}
        if len(row_of) == len(self):
            raise ConfigError("the corpus would be empty: it needs at least one passage")
        for passage_id, row in row_of.items():
            del self._row_of[passage_id]
            self._removed.add(row)
        self._changed()

    def tokenize(self, tokenizer: Any) -> None:
        """Hold the token ids of this tokenizer, where they are not held yet."""
        wanted = fingerprint_of(tokenizer)
        if wanted == self.tokenizer:
            return
        tables = [
            table.with_tokens(token_ids([table[row] for row in range(len(table))], tokenizer)) for table in self._tables
        ]
        self._tables, self.tokenizer = tables, wanted
        self.__dict__.pop("tokens", None)

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def num_rows(self) -> int:
        """Rows, holes included."""
        return int(self._first_rows[-1])

    @property
    def rows(self) -> list[int]:
        """Rows that hold a passage, ascending."""
        return list(self._row_of.values())

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < self.num_rows or row in self._removed:
            raise IndexError(f"row {row} of a corpus of {self.num_rows} rows holds no passage")
        table = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        return self._tables[table][row - int(self._first_rows[table])]

    def __iter__(self) -> Iterator[Passage]:
        return (self[row] for row in self.rows)

    def __contains__(self, passage_id: object) -> bool:
        return passage_id in self._row_of

    def row_of(self, passage_id: str) -> int:
        """The row of that id. Raises ConfigError if there is none."""
        if passage_id not in self._row_of:
            raise ConfigError(f"passage {passage_id!r} is not among the {len(self)} passages of the corpus")
        return self._row_of[passage_id]

    def by_id(self, passage_id: str) -> Passage:
        """The passage of that id. Raises ConfigError if there is none."""
        return self[self.row_of(passage_id)]

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """[rows]: False where a passage was removed."""
        present = np.ones(self.num_rows, np.bool_)
        present[sorted(self._removed)] = False
        return present

    @cached_property
    def ranks(self) -> npt.NDArray[np.int32]:
        """[rows]: the place of each id among all ids in order; holes come last."""
        ranks = np.empty(self.num_rows, np.int32)
        holes = sorted(self._removed)
        ranks[[self._row_of[passage_id] for passage_id in sorted(self._row_of)] + holes] = np.arange(self.num_rows)
        return ranks

    def ids(self, rows: Iterable[int]) -> list[str]:
        """The ids of these rows."""
        return [self[row].id for row in rows]

    @cached_property
    def tokens(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Token ids of all rows back to back, and [rows + 1] starts: row n is ``ids[starts[n]:starts[n + 1]]``."""
        if len(self._tables) == 1:
            return self._tables[0].tokens, self._tables[0].token_starts
        lengths = np.concatenate([np.diff(table.token_starts) for table in self._tables])
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return np.concatenate([table.tokens for table in self._tables]), starts

    def token_ids(self, row: int) -> npt.NDArray[np.int32]:
        """Token ids of a passage as the answering model reads it; empty without a tokenizer."""
        ids, starts = self.tokens
        return ids[starts[row] : starts[row + 1]]

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) over all passages in order; equal content gives an equal digest, wherever it lies."""
        return _digest(self)

    @classmethod
    def _of(cls, tables: list[PassageTable], tokenizer: str) -> Corpus:
        corpus = cls.__new__(cls)
        corpus._take(tables, tokenizer)
        return corpus

    def _take(self, tables: list[PassageTable], tokenizer: str) -> None:
        self.version, self.tokenizer = 0, tokenizer
        self._tables, self._removed, self._row_of = tables, set(), {}
        for row, passage_id in enumerate(chain.from_iterable(table.ids() for table in tables)):
            if self._row_of.setdefault(passage_id, row) != row:
                raise _twice(passage_id)
        if not self._row_of:
            raise ConfigError("the corpus is empty: it needs at least one passage")
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._first_rows = np.cumsum([0, *(len(table) for table in self._tables)])
        for name in ("digest", "tokens", "ranks"):
            self.__dict__.pop(name, None)


def _batches(
    source: Path, tokenizer: Any | None, chunk_tokens: int, overlap_tokens: int, progress: Progress | None
) -> Iterator[tuple[list[Passage], Sequence[npt.NDArray[np.int32]]]]:
    """The passages of a source and their token ids, some hundred at a time."""
    total = source_bytes(source)
    batch: list[Passage] = []

    def flushed() -> tuple[list[Passage], Sequence[npt.NDArray[np.int32]]]:
        taken = batch.copy()
        batch.clear()
        return taken, token_ids(taken, tokenizer) if tokenizer is not None else empty_tokens(len(taken))

    for document, num_bytes in read_documents(source):
        batch += [document] if tokenizer is None else cut(document, tokenizer, chunk_tokens, overlap_tokens)
        if len(batch) >= BATCH_PASSAGES:
            yield flushed()
            if progress:
                progress(num_bytes, total)
    if batch:
        yield flushed()
    if progress:
        progress(total, total)


def _twice(passage_id: str) -> ConfigError:
    return ConfigError(f"passage id {passage_id!r} occurs more than once in the corpus; ids must be unique")


def _line(passage: Passage) -> bytes:
    row = [passage.id, passage.title, passage.text, passage.doc_id, passage.start]
    return json.dumps(row, ensure_ascii=True).encode("ascii") + b"\n"


def _digest(passages: Iterable[Passage]) -> str:
    sha = hashlib.sha256()
    for passage in passages:
        sha.update(_line(passage))
    return sha.hexdigest()
