"""Which states are being loaded, which loads failed, and what is counted of them. Moves integers, never tensors."""

from __future__ import annotations

from pss_engine.errors import PSSError
from pss_engine.state.counters import StateCounters
from pss_engine.state.lru import Placement, SlotLRU, SlotRef

MAX_KEPT_FAILURES = 64


class LoadBooks:
    """The way of a state into its slot: asked for, begun, ended. No locking.

    Args:
        lru: of the slots.
        counters: that the books count in.

    Attributes:
        loading: key -> slot of the loads under way.
        num_ended: loads that ended, well or not.
    """

    def __init__(self, lru: SlotLRU, counters: StateCounters) -> None:
        self._lru, self._counters = lru, counters
        self.loading: dict[str, int] = {}
        self.num_ended = 0
        self._fresh: set[int] = set()  # filled, and never held since
        self._failures: dict[str, BaseException] = {}

    def ask(self, key: str) -> SlotRef | None:
        """Hold a state that is ready; None if it is not. Raises the error of its load, once, if that failed."""
        failure = self._failures.pop(key, None)
        if failure is not None:
            raise failure
        ref = self._lru.hold(key)
        if ref is None:
            self._counters.waits += 1
        elif ref.slot in self._fresh:
            self._fresh.remove(ref.slot)
        else:
            self._counters.hits += 1
        return ref

    def begin(self, key: str) -> Placement | None:
        """A slot to load the state into; None if its load is under way, or every slot is being filled or held."""
        placement = self._lru.reserve(key)
        if placement is not None:
            self._counters.misses += 1
            self._counters.evictions += placement.evicted is not None
            self._fresh.discard(placement.ref.slot)
            self.loading[key] = placement.ref.slot
        return placement

    def succeed(self, key: str, num_bytes: int) -> None:
        """The state is in its slot."""
        slot = self.loading.pop(key)
        self._lru.publish(slot)
        self._fresh.add(slot)
        self._counters.loads += 1
        self._counters.loaded_bytes += num_bytes
        self.num_ended += 1

    def fail(self, key: str, error: BaseException) -> None:
        """The state is not in its slot, which is free again. The error is kept for who asks next, up to a number."""
        self._lru.free(self.loading.pop(key))
        self._counters.failed_loads += 1
        self.num_ended += 1
        self._failures[key] = error
        if len(self._failures) > MAX_KEPT_FAILURES:  # who still waits for the oldest has it tried again
            del self._failures[next(iter(self._failures))]

    def forget_failure(self, key: str) -> None:
        """Drop the error of a load that failed."""
        self._failures.pop(key, None)

    def retire(self, key: str) -> int | None:
        """As ``SlotLRU.retire``, counted."""
        slot = self._lru.retire(key)
        if slot is not None:
            self._fresh.discard(slot)
            self._counters.evictions += 1
        return slot

    def check(self) -> None:
        """Raise PSSError unless the books balance: every miss is a load, a failed load, or under way."""
        self._lru.check()
        misses, loads, failed = self._counters.misses, self._counters.loads, self._counters.failed_loads
        if misses - loads - failed != len(self.loading) or not self._fresh <= set(self._lru.filled()):
            raise PSSError(
                f"state slots do not balance: {misses} misses, {loads} loads and {failed} failed ones, "
                f"{len(self.loading)} under way, {sorted(self._fresh)} fresh"
            )
