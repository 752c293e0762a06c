"""StateStore: the states of all sessions on disk, named by their content.

::

    objects/<digest>/              a PEFT adapter folder with pss_state.json; never changed
    sessions/<session_id>/HEAD     its versions, a digest a line; the last one is current
    quarantine/<digest>-<n>/       objects that failed their check
    tenants/<name>/                the same again for each tenant, with nothing in common
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pss_engine.durable import sync_folder
from pss_engine.errors import ConfigError, PSSError, StateFormatError
from pss_engine.state.adapter import StateRecord, read_record, read_state, state_files, write_files
from pss_engine.state.file_source import FileSource, FolderSource, MemorySource
from pss_engine.state.files import check_session_id, disk_errors
from pss_engine.state.sealing import SEALED_FILE, StateKey, WrongKey
from pss_engine.state.session_state import SessionState
from pss_engine.state.store_folder import LOCK_TIMEOUT_S, StoreFolder, Version
from pss_engine.state.store_garbage import Deletion, collect, forget

DEFAULT_MAX_STATE_BYTES = 4 << 30


class HeadMoved(PSSError):
    """A session whose current version is not the one that the caller went by; nothing was changed."""


class StateStore:
    """States on disk. Safe for several threads and processes at once: a file lock orders writers and readers.

    Args:
        root: folder of the store; made by the first ``put``.
        max_state_bytes: largest state accepted by ``put``.
        tenant: whose part of the store this is; tenants see nothing of each other. Empty: the part of nobody.
        key: states are sealed with it (AES-GCM), and only sealed ones are read. Session ids and digests stay readable.
        lock_timeout_s: how long to wait for another process.

    Raises:
        ConfigError: ``root`` exists and is not a folder, or a tenant that cannot name one.
    """

    def __init__(
        self,
        root: str | Path,
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
        *,
        tenant: str = "",
        key: StateKey | None = None,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        place = Path(root) / "tenants" / check_session_id(tenant) if tenant else Path(root)
        self._folder = StoreFolder(place, lock_timeout_s)
        self.max_state_bytes, self.tenant, self._key = max_state_bytes, tenant, key

    @property
    def root(self) -> Path:
        """Folder of the store, absolute."""
        return self._folder.root

    def put(self, state: SessionState, session_id: str | None = None, expected: str | None = None) -> str:
        """Store a state and make it the session's current one; returns its digest.

        The files are written beside their place, read back, and only then renamed; HEAD moves last. If anything fails
        until then, the session keeps the version it had and nothing is left behind. Earlier versions stay until
        :meth:`gc` or :meth:`prune`.

        Args:
            expected: the digest that must be current, empty for none; None: whatever is.

        Raises:
            StateFormatError: a state that is not sound.
            CapacityError: over ``max_state_bytes``, or the disk is full.
            ConfigError: a bad session id, or a folder that cannot be written.
            HeadMoved: another version than ``expected`` is current.
            StoreLocked: another process holds the store for too long.
        """
        session_id = check_session_id(state.session_id if session_id is None else session_id)
        state.check(max_bytes=self.max_state_bytes)
        with disk_errors("state store", self.root, state.num_bytes):
            self.root.mkdir(parents=True, exist_ok=True)
            with self._folder.lock(exclusive=True, work=f"put {session_id}"):
                self._expect(session_id, expected)
                is_new = self._put_object(state)
                try:
                    self._point(session_id, state.digest, "put")
                except BaseException:
                    if is_new:
                        shutil.rmtree(self._folder.object_of(state.digest), ignore_errors=True)
                    raise
                self._folder.sync_head(session_id)
        return state.digest

    def log(self, session_id: str) -> list[Version]:
        """The session's versions, oldest first, the current one last; SessionNotFound if there is none."""
        with self._folder.lock(exclusive=False):
            return self._folder.versions(session_id)

    def rollback(self, session_id: str, to: str = "", expected: str | None = None) -> str:
        """Make an earlier version current again, and record that; returns its digest.

        Args:
            to: the beginning of its digest; empty: the version before the current one.
            expected: as in :meth:`put`.

        Raises:
            SessionNotFound: no such session.
            ConfigError: no earlier version, or ``to`` names none, or more than one.
            StateFormatError: its object is damaged or gone; the current version stays.
            HeadMoved: another version than ``expected`` is current.
        """
        with disk_errors("state store", self.root, 0), self._folder.lock(exclusive=True, work=f"rollback {session_id}"):
            self._expect(session_id, expected)
            digest = _earlier(session_id, self._folder.versions(session_id), to)
            self._read_object(digest, session_id)
            self._point(session_id, digest, "rollback")
            self._folder.sync_head(session_id)
        return digest

    def get(self, session_id: str) -> SessionState:
        """The session's current state, tensors on the CPU, digest checked.

        Raises:
            SessionNotFound: nothing is stored for the session.
            StateFormatError: its files are damaged; the object is moved to quarantine, other sessions are untouched.
        """
        with self._folder.lock(exclusive=False):
            digest = self._folder.head(session_id)
            try:
                return self._read_object(digest, session_id)
            except WrongKey:  # nothing is known to be wrong with the object
                raise
            except StateFormatError as error:
                reason = error
        return self._read_or_quarantine(digest, session_id, reason)

    def get_digest(self, digest: str, session_id: str | None = None) -> SessionState:
        """The state with this digest, current or not, as that session's; errors as :meth:`get`.

        ``session_id`` defaults to the session that stored it first. StateFormatError if there is no such state.
        """
        with self._folder.lock(exclusive=False):
            try:
                return self._read_object(digest, session_id)
            except WrongKey:  # nothing is known to be wrong with the object
                raise
            except StateFormatError as error:
                reason = error
        return self._read_or_quarantine(digest, session_id, reason)

    def record(self, session_id: str) -> StateRecord:
        """What is said of the session's current state; reads and checks no tensor. Errors as :meth:`get`."""
        with self._folder.lock(exclusive=False):
            digest = self._folder.head(session_id)
            try:
                found = read_record(self._source(digest))
            except WrongKey:
                raise
            except StateFormatError:
                found = None
        if found is not None and found.digest == digest:
            return found
        state = self.get_digest(digest, session_id)  # says what is wrong, and takes a damaged object out of the way
        return StateRecord(session_id, digest, state.num_bytes, state.meta)

    def sessions(self) -> list[str]:
        """Ids of all sessions with a state, sorted."""
        return self._folder.sessions()

    def __contains__(self, session_id: object) -> bool:
        """Whether a session has a state; False for what cannot be a session id."""
        return self._folder.has(session_id)

    def head(self, session_id: str) -> str:
        """Digest of the session's current state; SessionNotFound, or StateFormatError if HEAD is damaged."""
        return self._folder.head(session_id)

    def path(self, session_id: str) -> Path:
        """Folder of the session's current state, which PEFT can load; SessionNotFound if there is none."""
        return self._folder.object_of(self._folder.head(session_id))

    def info(self, session_id: str) -> dict[str, Any]:
        """Facts about the session's state, checked like :meth:`get`, as JSON values."""
        state = self.get(session_id)
        return {**state.describe(), "path": str(self._folder.object_of(state.digest))}

    def delete(self, session_id: str) -> Deletion:
        """Forget a session: its versions, and every copy of them that no other session has; SessionNotFound if none.

        What an engine holds of it goes with :meth:`Engine.forget_state`.
        """
        self._folder.require(session_id)
        with disk_errors("state store", self.root, 0), self._folder.lock(exclusive=True, work=f"delete {session_id}"):
            self._folder.require(session_id)
            return forget(self._folder, session_id)

    def gc(self, keep_versions: int | None = None) -> int:
        """Remove objects that no session names, quarantined ones and leftovers; returns how many.

        Args:
            keep_versions: of each session, the newest ones; None: all.

        Raises:
            ConfigError: ``keep_versions`` under 1.
            StateFormatError: a session's HEAD is damaged, so that nothing can safely go; delete that session first.
        """
        if keep_versions is not None and keep_versions < 1:
            raise ConfigError(f"keep_versions is {keep_versions}; it must be at least 1")
        if not self.root.is_dir():
            return 0
        with disk_errors("state store", self.root, 0), self._folder.lock(exclusive=True, work="gc"):
            return collect(self._folder, keep_versions)

    def prune(self) -> int:
        """:meth:`gc` that keeps the current version of each session alone."""
        return self.gc(keep_versions=1)

    def _source(self, digest: str, folder: Path | None = None) -> FileSource:
        """The files of an object, opened if they are sealed."""
        plain = FolderSource(folder or self._folder.object_of(digest), follow_symlinks=False)
        is_sealed = plain.has(SEALED_FILE)
        if self._key is None:
            if is_sealed:
                raise WrongKey(f"{plain.where(SEALED_FILE)}: is sealed; give the store its key")
            return plain
        if not is_sealed and plain.folder.exists():
            raise WrongKey(
                f"{plain.folder}: is not sealed, and this store has a key; write it again or read it without"
            )
        with plain.open(SEALED_FILE) as file:
            return MemorySource(self._key.open(file.read(), digest, plain.where(SEALED_FILE)), str(plain.folder))

    def _expect(self, session_id: str, expected: str | None) -> None:
        if expected is None:
            return
        current = self._folder.head(session_id) if self._folder.has(session_id) else ""
        if current != expected:
            raise HeadMoved(
                f"session {session_id}: its current version is {current[:16] or 'none'}, "
                f"{expected[:16] or 'none'} was expected; read it again"
            )

    def _point(self, session_id: str, digest: str, action: str) -> None:
        try:
            versions = self._folder.versions(session_id) if self._folder.has(session_id) else []
        except StateFormatError:  # a damaged HEAD is replaced by a good one
            versions = []
        if not versions or versions[-1].digest != digest:
            versions.append(Version.now(len(versions) + 1, digest, action))
        self._folder.write_head(session_id, versions)

    def _put_object(self, state: SessionState) -> bool:
        """Make sure that a sound object is in place; True if it was not there before."""
        objects = self._folder.objects()
        objects.mkdir(exist_ok=True)
        for leftover in objects.glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        target = self._folder.object_of(state.digest)
        if target.exists():
            try:
                self._read_object(state.digest, None)
                return False
            except WrongKey:  # the same state as it was kept before: sealed with another key, or not at all
                shutil.rmtree(target)
            except StateFormatError:
                self._quarantine(state.digest)
        temporary = objects / f".tmp-{state.digest}"
        try:
            files = state_files(state)
            if self._key is not None:
                files = {SEALED_FILE: self._key.seal(files, state.digest)}
            write_files(files, temporary)
            read_state(self._source(state.digest, temporary), None)
            temporary.replace(target)
            sync_folder(objects)
        except BaseException:
            for unfinished in (temporary, target):
                shutil.rmtree(unfinished, ignore_errors=True)
            raise
        return True

    def _read_object(self, digest: str, session_id: str | None) -> SessionState:
        folder = self._folder.object_of(digest)
        if not folder.exists():
            raise StateFormatError(
                f"state {digest[:16]}: not in {folder.parent}; removed, or in quarantine after a failed check"
            )
        state = read_state(self._source(digest), session_id)
        if state.digest != digest:
            raise StateFormatError(f"{folder}: digest is {state.digest[:16]}, stored as {digest[:16]}")
        return state

    def _read_or_quarantine(self, digest: str, session_id: str | None, reason: StateFormatError) -> SessionState:
        """Read again, alone, before moving an object away: a sound one may have been put there in the meantime."""
        try:
            with self._folder.lock(exclusive=True):
                if not self._folder.object_of(digest).exists():
                    raise reason
                try:
                    return self._read_object(digest, session_id)
                except StateFormatError as error:
                    place = self._quarantine(digest)
                    raise StateFormatError(f"{error}; moved to {place}") from None
        except OSError:  # a read-only store: the damaged object has to stay
            raise reason from None

    def _quarantine(self, digest: str) -> Path:
        folder = self._folder.quarantine()
        folder.mkdir(exist_ok=True)
        number = sum(1 for entry in folder.iterdir() if entry.name.startswith(digest))
        place = folder / f"{digest}-{number}"
        self._folder.object_of(digest).replace(place)
        return place


def _earlier(session_id: str, versions: list[Version], to: str) -> str:
    """The digest that ``to`` means among a session's versions, in the words of :meth:`StateStore.rollback`."""
    digests = list(dict.fromkeys(version.digest for version in versions))
    current = versions[-1].digest
    if not to:
        if len(versions) < 2:
            raise ConfigError(f"session {session_id}: has one version, {current[:16]}; there is none to go back to")
        return versions[-2].digest
    found = [digest for digest in digests if digest.startswith(to)]
    if len(found) != 1:
        some = ", ".join(digest[:16] for digest in digests)
        raise ConfigError(f"session {session_id}: {to!r:.80} names {len(found)} of its versions; choices: {some}")
    return found[0]
