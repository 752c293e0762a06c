"""The states that an engine may be asked for, by session: handles, not tensors."""

from __future__ import annotations

from dataclasses import replace

from pss_engine.errors import CapacityError, SessionNotFound
from pss_engine.models import LoadedModel
from pss_engine.state import SessionState, SlotRef, StateHandle, StateSlots, StateStore

IDLE_WAIT_S = 0.1
"""How long a wait for a state's load blocks before it looks around again."""


class StateRegistry:
    """Session id -> handle. Tensors are loaded when a request needs them; pinned sessions hold their slot."""

    def __init__(self, model: LoadedModel, slots: StateSlots, max_rank: int) -> None:
        self._model, self._slots, self._max_rank = model, slots, max_rank
        self._handles: dict[str, StateHandle] = {}
        self._pinned: dict[str, SlotRef] = {}

    @property
    def sessions(self) -> list[str]:
        return sorted(self._handles)

    def get(self, session: str) -> StateHandle:
        """Raises SessionNotFound."""
        if session not in self._handles:
            known = ", ".join(self.sessions[:5]) or "none"
            raise SessionNotFound(f"session {session!r} has no state in this engine; known: {known}")
        return self._handles[session]

    def add(self, state: SessionState) -> None:
        """Register a state in memory. Raises StateFormatError where it does not fit the engine."""
        self._handles[state.session_id] = StateHandle.of(self._checked(state))

    def add_stored(self, store: StateStore, session: str) -> None:
        """Register the newest stored state of a session; it is read, and checked, when it is first needed."""
        handle = StateHandle.stored(store, session)
        self._handles[session] = replace(handle, load=lambda: self._checked(handle.load()))

    def remove(self, session: str) -> None:
        self.get(session)
        self.unpin(session)
        del self._handles[session]

    def forget(self, session: str) -> None:
        """Remove a session and evict its state; a held one stays, pin and all. Raises CapacityError then."""
        digest = self.get(session).digest
        if not any(handle.digest == digest for name, handle in self._handles.items() if name != session):
            was_pinned = session in self._pinned
            self.unpin(session)
            try:
                self._slots.evict(digest)
            except CapacityError:
                if was_pinned:
                    self.pin(session)
                raise
        self.remove(session)

    def pin(self, session: str) -> None:
        """Hold a session's slot; at least one slot stays free of pins."""
        handle = self.get(session)
        if session in self._pinned:
            return
        if len(self._pinned) + 1 >= self._slots.num_slots:
            raise CapacityError("state slots to pin", len(self._pinned) + 1, self._slots.num_slots - 1)
        while (ref := self._slots.acquire(handle)) is None:
            if not self._slots.wait(IDLE_WAIT_S) and not self._slots.num_loading:
                raise CapacityError("state slots", 1, 0)
        self._pinned[session] = ref

    def unpin(self, session: str) -> None:
        if ref := self._pinned.pop(session, None):
            self._slots.release(ref)

    def _checked(self, state: SessionState) -> SessionState:
        state.check(
            shape=self._slots.shape,
            max_rank=self._max_rank,
            model_fingerprint=self._model.fingerprint,
            tokenizer_fingerprint=self._model.tokenizer.fingerprint,
        )
        return state
