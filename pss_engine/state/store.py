"""StateStore: the states of all sessions on disk, named by their content.

::

    objects/<digest>/              a PEFT adapter folder with pss_state.json; never changed
    sessions/<session_id>/HEAD     the digest that is current
    quarantine/<digest>-<n>/       objects that failed their check
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from pss_engine.errors import StateFormatError
from pss_engine.state.adapter import StateRecord, load_adapter, read_record, write_state_files
from pss_engine.state.files import check_session_id, disk_errors, sync_folder
from pss_engine.state.session_state import SessionState
from pss_engine.state.store_folder import StoreFolder

DEFAULT_MAX_STATE_BYTES = 4 << 30


class StateStore:
    """States on disk. Safe for several threads and processes at once: a file lock orders writers and readers.

    Args:
        root: folder of the store; made by the first ``put``.
        max_state_bytes: largest state accepted by ``put``.

    Raises:
        ConfigError: ``root`` exists and is not a folder.
    """

    def __init__(self, root: str | Path, max_state_bytes: int = DEFAULT_MAX_STATE_BYTES) -> None:
        self._folder = StoreFolder(root)
        self.max_state_bytes = max_state_bytes

    @property
    def root(self) -> Path:
        """Folder of the store, absolute."""
        return self._folder.root

    def put(self, state: SessionState, session_id: str | None = None) -> str:
        """Store a state and make it the session's current one; returns its digest.

        The files are written beside their place, read back, and only then renamed; HEAD moves last. If anything fails
        until then, the session keeps the version it had and nothing is left behind. The previous object stays until
        :meth:`prune`.

        Raises:
            StateFormatError: a state that is not sound.
            CapacityError: over ``max_state_bytes``, or the disk is full.
            ConfigError: a bad session id, or a folder that cannot be written.
        """
        session_id = check_session_id(state.session_id if session_id is None else session_id)
        state.check(max_bytes=self.max_state_bytes)
        with disk_errors("state store", self.root, state.num_bytes):
            self.root.mkdir(parents=True, exist_ok=True)
            with self._folder.lock(exclusive=True):
                is_new = self._put_object(state)
                try:
                    self._folder.move_head(session_id, state.digest)
                except BaseException:
                    if is_new:
                        shutil.rmtree(self._folder.object_of(state.digest), ignore_errors=True)
                    raise
                self._folder.sync_head(session_id)
        return state.digest

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
            except StateFormatError as error:
                reason = error
        return self._read_or_quarantine(digest, session_id, reason)

    def record(self, session_id: str) -> StateRecord:
        """What is said of the session's current state; reads and checks no tensor. Errors as :meth:`get`."""
        with self._folder.lock(exclusive=False):
            digest = self._folder.head(session_id)
            try:
                found = read_record(self._folder.object_of(digest), follow_symlinks=False)
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

    def delete(self, session_id: str) -> None:
        """Forget a session, and remove what :meth:`prune` removes; SessionNotFound if there is none."""
        self._folder.require(session_id)
        with disk_errors("state store", self.root, 0), self._folder.lock(exclusive=True):
            self._folder.require(session_id)
            self._folder.drop_head(session_id)
            with suppress(StateFormatError):  # another session's damaged HEAD: what it means to keep is unknown
                self._prune()

    def prune(self) -> int:
        """Remove earlier versions, quarantined objects and leftovers that no session names; returns how many.

        Raises:
            StateFormatError: a session's HEAD is damaged, so that nothing can safely go; delete that session first.
        """
        if not self.root.is_dir():
            return 0
        with disk_errors("state store", self.root, 0), self._folder.lock(exclusive=True):
            return self._prune()

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
            except StateFormatError:
                self._quarantine(state.digest)
        temporary = objects / f".tmp-{state.digest}"
        try:
            write_state_files(state, temporary)
            load_adapter(temporary, follow_symlinks=False)
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
        state = load_adapter(folder, session_id=session_id, follow_symlinks=False)
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

    def _prune(self) -> int:
        kept = {self._folder.head(session_id) for session_id in self._folder.sessions()}
        doomed = []
        for folder in (self._folder.objects(), self._folder.quarantine()):
            entries = sorted(folder.iterdir()) if folder.is_dir() else []
            doomed += [entry for entry in entries if entry.name.rsplit("-", 1)[0] not in kept]
        for entry in doomed:
            shutil.rmtree(entry)
        return len(doomed)
