"""StateCache: the states that are in host memory, packed as the kernels need them."""

from __future__ import annotations

import threading

import torch

from pss_engine.errors import ConfigError
from pss_engine.state.counters import StateCounters
from pss_engine.state.handle import StateHandle
from pss_engine.state.layout import StateLayout
from pss_engine.state.lru import SlotLRU, SlotRef
from pss_engine.state.rows import StateRows


class StateCache:
    """Host rows for as many states as fit into ``max_bytes``; the only owner of that memory.

    States are found by digest, so that equal ones share a row, and are not written to once they are packed. The one
    not used for longest goes first. Thread-safe; nothing is read or packed under the lock.

    Args:
        layout: of a row.
        max_bytes: budget of all rows, at least one of which must fit.
        reader: a GPU that reads or copies these rows: they are page-locked for it.

    Attributes:
        lock: guards the books of this tier, and those of the slots above it.
        counters: of all tiers.

    Raises:
        ConfigError: ``max_bytes`` is smaller than a row.
    """

    def __init__(self, layout: StateLayout, max_bytes: int, reader: torch.device | None = None) -> None:
        num_rows = max_bytes // layout.row_bytes
        if num_rows < 1:
            raise ConfigError(f"state cache of {max_bytes} bytes: one state takes {layout.row_bytes} bytes")
        self.layout, self.max_bytes = layout, max_bytes
        self.lock = threading.Condition()
        self.counters = StateCounters()
        self.rows = StateRows(layout, num_rows, reader=reader)
        self.lru = SlotLRU(num_rows)

    @property
    def num_bytes(self) -> int:
        """Bytes allocated, whether used or not."""
        return self.rows.num_bytes

    def fetch(self, handle: StateHandle) -> SlotRef:
        """Hold the row with this state in it, reading and packing the state if it is not here.

        Raises:
            StateFormatError: the state is not the one asked for, or does not fit; and whatever its ``load`` raises.
        """
        with self.lock:
            ref = self.lru.hold(handle.digest)
            if ref is not None:
                self.counters.host_hits += 1
                return ref
            self.counters.host_misses += 1
        state = handle.read()
        self.layout.check(state)
        with self.lock:
            placement = self.lru.reserve(handle.digest)
            while placement is None:  # another thread reads this state too, or all rows are held or being emptied
                ref = self.lru.hold(handle.digest)
                if ref is not None:
                    return ref
                self.lock.wait()
                placement = self.lru.reserve(handle.digest)
            self.counters.host_evictions += placement.evicted is not None
        slot = placement.ref.slot
        try:
            self.rows.write(slot, state)
        except BaseException:
            self._empty(slot)
            raise
        with self.lock:
            self.lru.publish(slot)
            self.lock.notify_all()
            ref = self.lru.hold(handle.digest)
        assert ref is not None
        return ref

    def release(self, ref: SlotRef) -> None:
        """Give a hold back; the state stays until its row is needed."""
        with self.lock:
            self.lru.release(ref)
            self.lock.notify_all()

    def resident(self, digest: str) -> bool:
        """Whether a state is in host memory."""
        with self.lock:
            return self.lru.is_filled(digest)

    def evict(self, digest: str) -> None:
        """Remove a state and zero its row; CapacityError while it is held, nothing if it is not here."""
        with self.lock:
            slot = self.lru.retire(digest)
            self.counters.host_evictions += slot is not None
        if slot is not None:
            self._empty(slot)

    def check(self) -> None:
        """Raise PSSError unless the books balance."""
        with self.lock:
            self.lru.check()

    def _empty(self, slot: int) -> None:
        """Zero a row that is reserved or retired, and let it be taken again."""
        try:
            self.rows.clear(slot)
        finally:
            with self.lock:
                self.lru.free(slot)
                self.lock.notify_all()
