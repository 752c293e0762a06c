"""Passages as columns: texts back to back in UTF-8, token ids back to back, in memory or mapped from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pss_engine.errors import ConfigError
from pss_engine.retrieval.columns import Array, ColumnWriter, map_columns
from pss_engine.retrieval.passage import Passage

TEXTS = ("id", "title", "text", "doc_id")
Tokens = Sequence[npt.NDArray[np.int32]]
DTYPES = {
    **{f"{name}.lengths": "int64" for name in TEXTS},
    **{f"{name}.bytes": "uint8" for name in TEXTS},
    "start": "int64",
    "tokens": "int32",
    "tokens.lengths": "int64",
}


def to_columns(passages: Sequence[Passage], tokens: Tokens) -> dict[str, Array]:
    """A batch of passages and their token ids as arrays named as in ``DTYPES``."""
    columns: dict[str, Array] = {}
    for name in TEXTS:
        encoded = [getattr(passage, name).encode("utf-8") for passage in passages]
        columns[f"{name}.lengths"] = np.array([len(text) for text in encoded], np.int64)
        columns[f"{name}.bytes"] = np.frombuffer(b"".join(encoded), np.uint8)
    columns["start"] = np.array([passage.start for passage in passages], np.int64)
    columns["tokens"] = np.concatenate([*tokens, np.zeros(0, np.int32)]).astype(np.int32)
    columns["tokens.lengths"] = np.array([len(ids) for ids in tokens], np.int64)
    return columns


class PassageTable:
    """A fixed run of passages.

    Args:
        columns: arrays as ``to_columns`` makes them.

    Raises:
        ConfigError: lengths that do not add up to the bytes there are.
    """

    def __init__(self, columns: dict[str, Array], where: str = "passages") -> None:
        self._columns = columns
        self._starts: dict[str, Array] = {}
        for name in (*TEXTS, "tokens"):
            lengths, data = columns[f"{name}.lengths"], columns["tokens" if name == "tokens" else f"{name}.bytes"]
            starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
            if (lengths < 0).any() or starts[-1] != len(data) or len(lengths) != len(columns["start"]):
                raise ConfigError(f"{where}: the lengths of {name} do not add up to the {len(data)} items there are")
            self._starts[name] = starts

    @classmethod
    def map(cls, path: Path) -> PassageTable:
        return cls(map_columns(path, DTYPES), f"index file {path}")

    def __len__(self) -> int:
        return len(self._columns["start"])

    def __getitem__(self, row: int) -> Passage:
        values = {name: self._text(name, row) for name in TEXTS}
        return Passage(**values, start=int(self._columns["start"][row]))

    def ids(self) -> list[str]:
        return [self._text("id", row) for row in range(len(self))]

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Token ids of all passages, one after the other."""
        return self._columns["tokens"]

    @property
    def token_starts(self) -> npt.NDArray[np.int64]:
        """[n + 1]: passage n is ``tokens[token_starts[n]:token_starts[n + 1]]``."""
        return self._starts["tokens"]

    @property
    def columns(self) -> dict[str, Array]:
        return self._columns

    def with_tokens(self, tokens: Tokens) -> PassageTable:
        """The same passages with other token ids."""
        lengths = np.array([len(ids) for ids in tokens], np.int64)
        flat = np.concatenate([*tokens, np.zeros(0, np.int32)]).astype(np.int32)
        return PassageTable({**self._columns, "tokens": flat, "tokens.lengths": lengths})

    def _text(self, name: str, row: int) -> str:
        start, end = self._starts[name][row : row + 2]
        return self._columns[f"{name}.bytes"][start:end].tobytes().decode("utf-8")


class TableWriter:
    """A table that is written to ``folder`` a batch at a time, in memory that does not grow with it."""

    def __init__(self, folder: Path) -> None:
        self._columns = ColumnWriter(folder, DTYPES)

    def append(self, passages: Sequence[Passage], tokens: Tokens) -> None:
        for name, values in to_columns(passages, tokens).items():
            self._columns.append(name, values)

    def finish(self, path: Path) -> None:
        self._columns.finish(path)


def empty_tokens(count: int) -> list[Any]:
    return [np.zeros(0, np.int32)] * count
