"""Where the files of a state are read from: a folder, or memory into which a sealed state was opened."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pss_engine.errors import StateFormatError
from pss_engine.state.files import open_regular, parse_json, read_json


class FileSource(Protocol):
    """Files by name."""

    def where(self, name: str) -> str:
        """How a message names the file."""

    def has(self, name: str) -> bool: ...

    def open(self, name: str) -> BinaryIO:
        """Raises StateFormatError where there is no such file."""

    def json(self, name: str) -> dict[str, Any]:
        """The JSON object in a file; StateFormatError if it is anything else."""


@dataclass(frozen=True)
class FolderSource:
    """The files of a folder; links are refused unless ``follow_symlinks``."""

    folder: Path
    follow_symlinks: bool = True

    def where(self, name: str) -> str:
        return str(self.folder / name)

    def has(self, name: str) -> bool:
        path = self.folder / name
        return path.exists() or path.is_symlink()

    def open(self, name: str) -> BinaryIO:
        return open_regular(self.folder / name, self.follow_symlinks)

    def json(self, name: str) -> dict[str, Any]:
        return read_json(self.folder / name, self.follow_symlinks)


@dataclass(frozen=True)
class MemorySource:
    """Files that are in memory alone."""

    files: Mapping[str, bytes]
    origin: str

    def where(self, name: str) -> str:
        return f"{self.origin}: {name}"

    def has(self, name: str) -> bool:
        return name in self.files

    def open(self, name: str) -> BinaryIO:
        if name not in self.files:
            raise StateFormatError(f"{self.where(name)}: no such file")
        return io.BytesIO(self.files[name])

    def json(self, name: str) -> dict[str, Any]:
        return parse_json(self.open(name).read(), self.where(name))
