"""The folder of a StateStore: its paths, its HEAD files and its lock."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pss_engine.errors import ConfigError, SessionNotFound, StateFormatError
from pss_engine.state.files import check_session_id, is_session_id, open_regular, sync_folder, write_file

_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_digest(digest: str, where: str) -> str:
    """The digest itself, if it is 64 hexadecimal digits; else StateFormatError."""
    if not _DIGEST.fullmatch(digest):
        raise StateFormatError(f"{where}: digest {digest!r:.80}: 64 hexadecimal digits are needed")
    return digest


class StoreFolder:
    """Every path that a store touches comes from here, so that none can be a link or leave the root.

    Raises:
        ConfigError: ``root`` exists and is not a folder.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).expanduser().resolve()
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(f"state store {self.root}: is not a folder")

    def objects(self) -> Path:
        return self._inside(self.root / "objects")

    def object_of(self, digest: str) -> Path:
        return self._inside(self.objects() / check_digest(digest, str(self.root)))

    def quarantine(self) -> Path:
        return self._inside(self.root / "quarantine")

    def session(self, session_id: str) -> Path:
        return self._inside(self._inside(self.root / "sessions") / check_session_id(session_id))

    def sessions(self) -> list[str]:
        """Ids of the sessions that have a HEAD, sorted."""
        folder = self._inside(self.root / "sessions")
        if not folder.is_dir():
            return []
        names = [entry.name for entry in folder.iterdir() if not entry.is_symlink() and (entry / "HEAD").is_file()]
        return sorted(name for name in names if is_session_id(name))

    def has(self, session_id: object) -> bool:
        """Whether this is the id of a session with a HEAD."""
        return isinstance(session_id, str) and is_session_id(session_id) and self._head_path(session_id).is_file()

    def require(self, session_id: str) -> None:
        """Raise SessionNotFound, naming a few known sessions, unless this one has a HEAD."""
        if not self.has(check_session_id(session_id)):
            known = self.sessions()
            some = f"{', '.join(known[:5])}{', ...' if len(known) > 5 else ''}" or "none"
            raise SessionNotFound(f"session {session_id}: no state in {self.root}; {len(known)} known: {some}")

    def head(self, session_id: str) -> str:
        """The session's current digest; StateFormatError if its HEAD is damaged."""
        self.require(session_id)
        path = self._head_path(session_id)
        with open_regular(path, follow_symlinks=False) as file:
            return check_digest(file.read(128).decode("ascii", "replace").strip(), str(path))

    def move_head(self, session_id: str, digest: str) -> None:
        """Point the session at a digest in one atomic step; on failure it points where it did."""
        folder = self.session(session_id)
        is_new = not folder.exists()
        temporary = folder / ".tmp-HEAD"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            write_file(temporary, f"{digest}\n".encode())
            temporary.replace(folder / "HEAD")
        except BaseException:
            temporary.unlink(missing_ok=True)
            if is_new:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def sync_head(self, session_id: str) -> None:
        """Make a moved HEAD durable."""
        folder = self.session(session_id)
        for level in (folder, folder.parent, self.root):
            sync_folder(level)

    def drop_head(self, session_id: str) -> None:
        """Remove the session's folder, HEAD first."""
        folder = self.session(session_id)
        (folder / "HEAD").unlink()
        shutil.rmtree(folder)
        sync_folder(folder.parent)

    @contextmanager
    def lock(self, exclusive: bool) -> Iterator[None]:
        """Wait for writers (shared) or for everybody (exclusive); other threads and processes alike."""
        if not exclusive and not os.access(self.root, os.W_OK):
            yield  # a store that is missing or mounted read-only has no writers to wait for
            return
        descriptor = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def _head_path(self, session_id: str) -> Path:
        return self.session(session_id) / "HEAD"

    def _inside(self, path: Path) -> Path:
        if path.is_symlink() or not path.resolve().is_relative_to(self.root):
            raise StateFormatError(f"{path}: is a symbolic link or outside the store; refused")
        return path
