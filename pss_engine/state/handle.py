"""StateHandle: a state that can be had, whether it is in memory or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pss_engine.errors import StateFormatError
from pss_engine.state.meta import StateMeta

if TYPE_CHECKING:
    from pss_engine.state.session_state import SessionState
    from pss_engine.state.store import StateStore


@dataclass(frozen=True)
class StateHandle:
    """What has to be known of a state before it is loaded.

    Attributes:
        digest: the content it must have.
        session_id: whose state it is.
        num_bytes: of its factors.
        load: gives the state; called in the loader's thread, may take long and may raise.
        meta: what the state says of itself: fingerprints, readout.
    """

    digest: str
    session_id: str
    num_bytes: int
    load: Callable[[], SessionState] = field(compare=False, repr=False)
    meta: StateMeta = field(default_factory=StateMeta, compare=False, repr=False)

    @classmethod
    def of(cls, state: SessionState) -> StateHandle:
        """A handle that keeps a state in memory."""
        return cls(state.digest, state.session_id, state.num_bytes, lambda: state, state.meta)

    @classmethod
    def stored(cls, store: StateStore, session_id: str) -> StateHandle:
        """A handle of the session's current version in a store; a later ``put`` does not change what it loads.

        Raises:
            SessionNotFound: nothing is stored for the session.
            StateFormatError: what its files say of the state is damaged; the object is moved to quarantine.
        """
        record = store.record(session_id)
        digest = record.digest
        return cls(digest, session_id, record.num_bytes, lambda: store.get_digest(digest, session_id), meta=record.meta)

    def read(self) -> SessionState:
        """Load the state and make sure that it is this one; StateFormatError if not, and whatever ``load`` raises."""
        state = self.load()
        if state.digest != self.digest:
            raise StateFormatError(
                f"state {self.session_id}: digest is {state.digest[:16]}, {self.digest[:16]} was asked for"
            )
        return state
