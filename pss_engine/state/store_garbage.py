"""What a store no longer needs, and forgetting a session so that it can be shown."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pss_engine.durable import sync_folder
from pss_engine.errors import PSSError, StateFormatError
from pss_engine.state.store_folder import StoreFolder


@dataclass(frozen=True)
class Erased:
    """A file that is gone: its path in the store, its bytes, and the SHA-256 of what it held."""

    path: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Deletion:
    """The proof of a session's deletion.

    Attributes:
        digests: all versions that the session had.
        erased: every file that was removed: states with their readouts, the versions' list, quarantined copies.
        kept: digests that stay because other sessions have the same state.
        left: files that still name the session or hold one of its states; empty, or the deletion has failed.
    """

    session_id: str
    digests: tuple[str, ...]
    erased: tuple[Erased, ...]
    kept: tuple[str, ...]
    left: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "digests": list(self.digests),
            "erased": [vars(erased) for erased in self.erased],
            "kept": list(self.kept),
            "left": list(self.left),
        }


def collect(folder: StoreFolder, keep_versions: int | None) -> int:
    """Remove what no session names, earlier versions beyond ``keep_versions`` (None: all stay), quarantined objects and
    leftovers; returns how many objects went. The store's lock must be held.

    Raises:
        StateFormatError: a HEAD is damaged, so that nothing can safely go.
    """
    kept: set[str] = set()
    for session_id in folder.sessions():
        versions = folder.versions(session_id)
        if keep_versions is not None and len(versions) > keep_versions:
            versions = versions[-keep_versions:]
            folder.write_head(session_id, versions)
            folder.sync_head(session_id)
        kept |= {version.digest for version in versions}
    doomed = [entry for entry in _entries(folder) if entry.name not in kept]
    for entry in doomed:
        shutil.rmtree(entry)
    return len(doomed)


def forget(folder: StoreFolder, session_id: str) -> Deletion:
    """Remove a session, and every copy of its states that no other session names. The store's lock must be held."""
    try:
        digests = {version.digest for version in folder.versions(session_id)}
    except StateFormatError:  # a damaged HEAD: what it named is found as what nobody names
        digests = set()
    others, readable = _named_by_others(folder, session_id)
    erased = _erase(folder, folder.session(session_id))
    sync_folder(folder.session(session_id).parent)
    for entry in _entries(folder):
        digest = entry.name.rsplit("-", 1)[0]
        # with another HEAD unreadable, only what this session alone is known to have had can go
        if digest in digests - others or (readable and digest not in others):
            erased += _erase(folder, entry)
            sync_folder(entry.parent)
    left = [str(folder.session(session_id))] if folder.session(session_id).exists() else []
    left += [str(entry) for entry in _entries(folder) if entry.name.rsplit("-", 1)[0] in digests - others]
    return Deletion(session_id, tuple(sorted(digests)), tuple(erased), tuple(sorted(digests & others)), tuple(left))


def _named_by_others(folder: StoreFolder, session_id: str) -> tuple[set[str], bool]:
    named, readable = set(), True
    for other in folder.sessions():
        if other == session_id:
            continue
        try:
            named |= {version.digest for version in folder.versions(other)}
        except StateFormatError:
            readable = False
    return named, readable


def _entries(folder: StoreFolder) -> list[Path]:
    return [
        entry
        for place in (folder.objects(), folder.quarantine())
        if place.is_dir()
        for entry in sorted(place.iterdir())
    ]


def _erase(folder: StoreFolder, entry: Path) -> list[Erased]:
    files = [path for path in sorted(entry.rglob("*")) if path.is_file() and not path.is_symlink()]
    erased = [_described(folder.root, path) for path in files]
    shutil.rmtree(entry)
    if entry.exists():
        raise PSSError(f"{entry}: is still there after it was removed")
    return erased


def _described(root: Path, path: Path) -> Erased:
    sha = hashlib.sha256()
    with suppress(OSError), path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            sha.update(block)
    return Erased(str(path.relative_to(root)), path.stat().st_size, sha.hexdigest())
