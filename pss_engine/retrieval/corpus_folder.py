"""A corpus on disk: ``corpus.json`` says what it is, ``passages.safetensors`` holds it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pss_engine.durable import sync_folder, write_durably
from pss_engine.errors import ConfigError, StateFormatError
from pss_engine.retrieval.table import TableWriter
from pss_engine.state.files import disk_errors, read_json, to_json_bytes

META, TABLE = "corpus.json", "passages.safetensors"
FORMAT = "pss-corpus-1"
_FIELDS = {"format": str, "digest": str, "num_passages": int, "tokenizer": str}


def is_corpus_folder(path: Path) -> bool:
    return (path / META).is_file() and (path / TABLE).is_file()


class CorpusFolder:
    """One folder; ``create`` makes it appear whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    @contextmanager
    def create(cls, folder: Path) -> Iterator[CorpusFolder]:
        """A new folder, filled under another name and renamed at the end; removed if anything fails before."""
        if folder.exists():
            raise ConfigError(f"corpus {folder} exists; name a new folder, or remove it first")
        partial = folder.with_name(f".{folder.name}.partial")
        with disk_errors("corpus", folder.parent, 0):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                yield cls(partial)
                sync_folder(partial)
                partial.rename(folder)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise

    @property
    def path(self) -> Path:
        """The file of passages."""
        return self._folder / TABLE

    @contextmanager
    def table(self) -> Iterator[TableWriter]:
        writer = TableWriter(self._folder)
        yield writer
        writer.finish(self.path)

    def describe(self, digest: str, num_passages: int, tokenizer: str, settings: Mapping[str, Any]) -> None:
        meta = {"format": FORMAT, "digest": digest, "num_passages": num_passages, "tokenizer": tokenizer, **settings}
        write_durably(self._folder / META, [to_json_bytes(meta)])

    def read(self) -> dict[str, Any]:
        """What the corpus is. Raises ConfigError for a folder that is none, or not of this format."""
        if not is_corpus_folder(self._folder):
            raise ConfigError(f"corpus {self._folder}: there is no {META} with {TABLE}; Corpus.build makes them")
        try:
            meta = read_json(self._folder / META)
        except StateFormatError as error:
            raise ConfigError(f"corpus {error}") from None
        for name, kind in _FIELDS.items():
            if not isinstance(meta.get(name), kind):
                raise ConfigError(f"corpus {self._folder}: {META} has no {name!r} of type {kind.__name__}")
        if meta["format"] != FORMAT:
            raise ConfigError(f"corpus {self._folder} is of format {meta['format']!r}; this version reads {FORMAT}")
        return meta
