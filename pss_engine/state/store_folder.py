"""The folder of a StateStore: its paths, its HEAD files and its lock."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pss_engine.durable import sync_folder, write_durably
from pss_engine.errors import ConfigError, SessionNotFound, StateFormatError
from pss_engine.state.files import check_session_id, is_session_id, open_regular
from pss_engine.state.store_lock import hold

MAX_HEAD_BYTES = 1 << 20
LOCK_TIMEOUT_S = 60.0
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_digest(digest: str, where: str) -> str:
    """The digest itself, if it is 64 hexadecimal digits; else StateFormatError."""
    if not _DIGEST.fullmatch(digest):
        raise StateFormatError(f"{where}: digest {digest!r:.80}: 64 hexadecimal digits are needed")
    return digest


@dataclass(frozen=True)
class Version:
    """A state that a session's HEAD has pointed at.

    Attributes:
        number: from 1, in the order of time.
        action: ``put`` or ``rollback``.
    """

    number: int
    digest: str
    time: str
    action: str

    @classmethod
    def now(cls, number: int, digest: str, action: str) -> Version:
        return cls(number, digest, datetime.now(timezone.utc).isoformat(timespec="seconds"), action)

    @classmethod
    def parse(cls, number: int, line: str, where: str) -> Version:
        """A line of HEAD: digest, time and action; the digest alone is enough."""
        digest, time, action = [*line.split("\t"), "", ""][:3]
        return cls(number, check_digest(digest.strip(), where), time, action or "put")

    def line(self) -> str:
        return f"{self.digest}\t{self.time}\t{self.action}\n"


class StoreFolder:
    """Every path that a store touches comes from here, so that none can be a link or leave the root.

    Raises:
        ConfigError: ``root`` exists and is not a folder.
    """

    def __init__(self, root: str | Path, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.lock_timeout_s = lock_timeout_s
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
        return self.versions(session_id)[-1].digest

    def versions(self, session_id: str) -> list[Version]:
        """What the session's HEAD has pointed at, oldest first, the current one last; errors as :meth:`head`."""
        self.require(session_id)
        path = self._head_path(session_id)
        with open_regular(path, follow_symlinks=False) as file:
            text = file.read(MAX_HEAD_BYTES).decode("ascii", "replace")
        lines = text.splitlines()
        if not lines:
            raise StateFormatError(f"{path}: is empty; a digest is needed")
        return [Version.parse(number, line, str(path)) for number, line in enumerate(lines, 1)]

    def write_head(self, session_id: str, versions: Sequence[Version]) -> None:
        """Replace the session's versions, the last one current, in one atomic step; on failure nothing changes."""
        folder = self.session(session_id)
        is_new = not folder.exists()
        temporary = folder / ".tmp-HEAD"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            write_durably(temporary, ["".join(version.line() for version in versions).encode()])
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
    def lock(self, exclusive: bool, work: str = "") -> Iterator[None]:
        """Wait for writers (shared) or for everybody (exclusive); other threads and processes alike.

        Raises:
            StoreLocked: it is still held after ``lock_timeout_s``; names who holds it, for how long and for what.
        """
        if not exclusive and not os.access(self.root, os.W_OK):
            yield  # a store that is missing or mounted read-only has no writers to wait for
            return
        with hold(self.root / ".lock", exclusive, self.lock_timeout_s, work):
            yield

    def _head_path(self, session_id: str) -> Path:
        return self.session(session_id) / "HEAD"

    def _inside(self, path: Path) -> Path:
        if path.is_symlink() or not path.resolve().is_relative_to(self.root):
            raise StateFormatError(f"{path}: is a symbolic link or outside the store; refused")
        return path
