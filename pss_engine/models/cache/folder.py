"""The cache folder: its entries, what they weigh, and what has to go. Safe with several processes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pss_engine.durable import TEMPORARY, sync_folder, temporary_name
from pss_engine.errors import CapacityError, ConfigError

DISK_SHARE = 4
ABANDONED_S = 3600


def cache_folder() -> Path:
    """``PSS_CACHE_DIR``, else ``pss_engine`` in ``XDG_CACHE_HOME`` or in ``~/.cache``."""
    if named := os.environ.get("PSS_CACHE_DIR"):
        return Path(named).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")  # the specification says to ignore a relative one
    return (Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache") / "pss_engine"


@dataclass(frozen=True)
class Entry:
    """One model in the cache: its folder, bytes, and when it was last used (seconds since the epoch)."""

    path: Path
    num_bytes: int
    used_at: float


class CacheFolder:
    """Entries are folders that appear and vanish in one step, by renaming.

    Together they take at most ``PSS_CACHE_BYTES``, by default a quarter of the disk; those used longest ago go first.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.models, self.sources = root, root / "models", root / "sources"

    def entry(self, key: str) -> Path:
        return self.models / key

    def entries(self) -> list[Entry]:
        """What is kept, last used first."""
        found = []
        for path in self.models.iterdir() if self.models.is_dir() else []:
            if path.is_dir() and not path.name.startswith(TEMPORARY):
                try:
                    found.append(Entry(path, _size(path), path.stat().st_mtime))
                except FileNotFoundError:
                    continue  # another process has just removed it
        return sorted(found, key=lambda entry: -entry.used_at)

    def put(self, key: str, num_bytes: int, write: Callable[[Path], None]) -> None:
        """Make an entry: ``write`` fills a folder, which then appears under the key, unless another was first.

        Raises:
            CapacityError: ``num_bytes`` are more than the cache may take, or than the disk has left.
        """
        self.models.mkdir(parents=True, exist_ok=True, mode=0o700)
        room = min(self.max_bytes(), shutil.disk_usage(self.models).free)
        if num_bytes > room:
            raise CapacityError(f"model cache {self.root}", num_bytes, room, "bytes")
        temporary = self.models / temporary_name()
        temporary.mkdir(mode=0o700)
        try:
            write(temporary)
            sync_folder(temporary)
            try:
                temporary.rename(self.entry(key))
            except OSError:
                if not self.entry(key).is_dir():
                    raise
            sync_folder(self.models)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._make_room(key)

    def touch(self, key: str) -> None:
        """Note that an entry is in use."""
        with suppress(OSError):  # a read-only cache serves as well
            os.utime(self.entry(key))

    def discard(self, path: Path) -> None:
        """Remove an entry; whoever has its files open reads them to their end."""
        aside = self.models / temporary_name()
        try:
            path.rename(aside)
        except FileNotFoundError:
            return
        shutil.rmtree(aside, ignore_errors=True)

    def clear(self) -> int:
        """Remove everything, also what interrupted writers left; returns the bytes of the entries."""
        entries = self.entries()
        for entry in entries:
            self.discard(entry.path)
        for path in (self.models, self.sources):
            shutil.rmtree(path, ignore_errors=True)
        return sum(entry.num_bytes for entry in entries)

    def max_bytes(self) -> int:
        """How much the entries may take together. Raises ConfigError where ``PSS_CACHE_BYTES`` is no number."""
        text = os.environ.get("PSS_CACHE_BYTES")
        if text is not None:
            if not text.isdecimal():
                raise ConfigError(f"PSS_CACHE_BYTES is {text!r}; it must be a whole number of bytes")
            return int(text)
        existing = next(path for path in (self.root, *self.root.parents) if path.exists())
        return shutil.disk_usage(existing).total // DISK_SHARE

    def _make_room(self, newest: str) -> None:
        limit, kept = self.max_bytes(), 0
        for entry in sorted(self.entries(), key=lambda entry: entry.path.name != newest):
            kept += entry.num_bytes
            if kept > limit:
                self.discard(entry.path)
                kept -= entry.num_bytes
        for path in self.models.glob(f"{TEMPORARY}*"):
            with suppress(FileNotFoundError):  # its writer is done
                if time.time() - path.stat().st_mtime > ABANDONED_S:
                    shutil.rmtree(path, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
