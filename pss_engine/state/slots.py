"""StateSlots: the states that are on the device, ready for the LoRA kernels."""

from __future__ import annotations

import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

from pss_engine.errors import ConfigError, PSSError
from pss_engine.state.cache import StateCache
from pss_engine.state.counters import StateCounters
from pss_engine.state.handle import StateHandle
from pss_engine.state.layout import StateLayout
from pss_engine.state.load_books import LoadBooks
from pss_engine.state.loader import Loader
from pss_engine.state.lru import SlotLRU, SlotRef
from pss_engine.state.row_order import RowOrder, shares_host_memory
from pss_engine.state.rows import StateRows, TargetSlots
from pss_engine.state.shape import StateShape, TargetKey


class StateSlots:
    """Memory for ``num_slots`` states where the kernels read them; states come and go while others are in use.

    ``acquire`` never waits: it holds a state that is ready, or has it loaded in the background and is asked again. A
    state is found by its digest, loaded once however many ask, and evicted (least recently used first) only while
    nobody holds it. Where the device computes on host memory (the CPU, integrated GPUs) the rows of the StateCache are
    the slots; elsewhere a load goes through a page-locked row of the cache and one copy. Thread-safe; call ``acquire``
    with the stream current on which the kernels run.

    Args:
        targets: module name -> (in_features, out_features).
        layers: the session layers, ``range(first_session_layer, num_layers)``.
        num_slots: S.
        max_rank: R; smaller ranks are padded with zeros.
        dtype: of the factors in memory; a state in another dtype is rounded to it.
        device: that computes.
        max_cache_bytes: budget of the host rows of a device with memory of its own; 0 for one row, which every load
            passes through. Where the host's rows are the slots there is nothing beside them, and it is not used.
        unified: whether the host's rows are the slots; None asks the device.

    Attributes:
        shape: what a state must fit.
        cache: the tier below.
        counters: of all tiers.

    Raises:
        ConfigError: a size under 1, layers with gaps, or a cache budget that is not 0 and holds no row.
    """

    def __init__(
        self,
        targets: Mapping[str, tuple[int, int]],
        layers: range,
        num_slots: int,
        max_rank: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        max_cache_bytes: int = 0,
        unified: bool | None = None,
    ) -> None:
        if num_slots < 1 or layers.step != 1 or not layers:
            raise ConfigError(
                f"state slots: num_slots={num_slots} and layers={layers}: at least 1 of each is needed, without gaps"
            )
        self.shape = StateShape(layers.stop, dict(targets), layers.start)
        self.layout = StateLayout(self.shape, max_rank, dtype)
        device = torch.empty(0, device=device).device
        self.unified = shares_host_memory(device) if unified is None else unified
        reader = device if device.type == "cuda" else None
        if self.unified:
            self.cache = StateCache(self.layout, num_slots * self.layout.row_bytes, reader)
            self._rows, self._lru = self.cache.rows, self.cache.lru
        else:
            self.cache = StateCache(self.layout, max_cache_bytes or self.layout.row_bytes, reader)
            self._rows, self._lru = StateRows(self.layout, num_slots, device), SlotLRU(num_slots)
        self.num_slots = num_slots
        self._counters = self.cache.counters
        self._books = LoadBooks(self._lru, self._counters)
        self._lock = self.cache.lock
        self._order = RowOrder(device, by_host=self.unified)
        self._views = self._rows.views
        self._num_touching = dict.fromkeys(self.layout.index, 0)
        self._seen = threading.local()
        self._is_closed = False
        self._loader = Loader()
        weakref.finalize(self, self._loader.close)

    def acquire(self, handle: StateHandle) -> SlotRef | None:
        """Hold the state's slot if it is ready. Otherwise None: ask again; a load is begun as soon as a slot is free.

        Raises:
            StateFormatError: the load ended so: damaged, not the state asked for, or it does not fit. So with whatever
                else the handle's ``load`` raises. It is raised once; the next acquire tries again.
            PSSError: the slots are closed.
        """
        with self._lock:
            if self._is_closed:
                raise PSSError(f"state {handle.session_id}: the state slots are closed")
            ref = self._books.ask(handle.digest)
            if ref is None:
                self._begin(handle)
            return ref

    def release(self, ref: SlotRef) -> None:
        """Give a hold back; the state stays until its slot is needed. PSSError if the hold is stale."""
        with self._lock:
            self._lru.release(ref)

    def check_ref(self, ref: SlotRef) -> None:
        """Raise PSSError if the slot no longer has what was acquired; every step checks its slots so."""
        with self._lock:
            self._lru.check_ref(ref)

    def resident(self, digest: str) -> bool:
        """Whether a state is ready, so that ``acquire`` will hold it at once."""
        with self._lock:
            return self._lru.is_filled(digest)

    @property
    def num_loading(self) -> int:
        """Loads under way."""
        return len(self._books.loading)

    def wait(self, timeout: float) -> bool:
        """Block until a load has ended since this thread's last ``wait``; for a loop that has nothing else to do.

        Returns:
            True if one has, well or not; False after ``timeout`` seconds, or at once if no load is under way.
        """
        with self._lock:
            before = getattr(self._seen, "num_ended", 0)
            self._lock.wait_for(lambda: self._books.num_ended != before or not self._books.loading, timeout)
            self._seen.num_ended = self._books.num_ended
            return self._books.num_ended != before

    def forget_failure(self, digest: str) -> None:
        """Drop the error of a failed load that nobody will ask for."""
        with self._lock:
            self._books.forget_failure(digest)

    def evict(self, digest: str) -> None:
        """Remove a state from all memory and zero its rows; nothing if it is not there.

        Raises:
            CapacityError: it is held, or its load is under way.
        """
        with self._lock:
            self._books.forget_failure(digest)
            slot = self._books.retire(digest)
            if slot is not None:
                self._forget(slot)
        if slot is not None:
            try:
                self._clear(slot, self._order.mark())
            finally:
                with self._lock:
                    self._lru.free(slot)
                    self._lock.notify_all()
        if not self.unified:
            self.cache.evict(digest)

    def view(self, layer: int, module: str) -> TargetSlots | None:
        """The slots of one linear layer, or None if no resident state touches it and nothing needs to be launched."""
        return self._views[layer, module] if self._num_touching.get((layer, module)) else None

    @property
    def views(self) -> Mapping[TargetKey, TargetSlots]:
        """The slots of all adapted layers, whatever is resident; their addresses never change, as a capture needs."""
        return self._views

    @property
    def counters(self) -> StateCounters:
        """What all tiers did until now; a copy."""
        with self._lock:
            return replace(self._counters)

    @property
    def num_bytes(self) -> int:
        """Bytes allocated for states, on the device and in the cache."""
        return self.cache.num_bytes + (0 if self.unified else self._rows.num_bytes)

    def check(self) -> None:
        """Raise PSSError unless the books balance: slots, loads, and which layers the resident states touch."""
        self.cache.check()
        with self._lock:
            self._books.check()
            filled, filling = sorted(self._lru.filled()), self._lru.filling()
            ranks = self._rows.ranks.cpu()
            for key, index in self.layout.index.items():
                touching = [slot for slot in filled if key in self._rows.touched[slot]]
                ranked = [slot for slot in ranks[index].nonzero().flatten().tolist() if slot not in filling]
                if len(touching) != self._num_touching[key] or touching != ranked:
                    raise PSSError(
                        f"state slots do not balance: layer {key[0]} {key[1]} is touched by slots {touching}, "
                        f"counted {self._num_touching[key]}, ranks {ranks[index].tolist()}"
                    )

    def close(self) -> None:
        """End the loader's thread once the load it is at is over; loads not yet begun are given up."""
        with self._lock:
            self._is_closed = True
        self._loader.close()
        for digest, slot in list(self._books.loading.items()):
            self._clear(slot, self._order.mark())
            with self._lock:
                self._books.fail(digest, PSSError("the state slots were closed before the load began"))
                self._lock.notify_all()

    # a load: begun by acquire, run in the loader's thread

    def _begin(self, handle: StateHandle) -> None:
        placement = self._books.begin(handle.digest)
        if placement is None:
            return
        slot = placement.ref.slot
        self._forget(slot)
        try:
            self._loader.submit(partial(self._run, handle, slot, self._order.mark()))
        except RuntimeError as error:  # no thread can be started: the next acquire raises it
            self._books.fail(handle.digest, error)
            self._lock.notify_all()

    def _run(self, handle: StateHandle, slot: int, mark: torch.cuda.Event | None) -> None:
        started = time.perf_counter()
        error = _error_of(partial(self._fill, handle, slot, mark))
        if error is not None:
            _error_of(partial(self._clear, slot, mark))
        with self._lock:
            self._counters.load_seconds += time.perf_counter() - started
            if error is not None:
                self._books.fail(handle.digest, error)
            else:
                self._books.succeed(handle.digest, handle.num_bytes)
                for key in self._rows.touched[slot]:
                    self._num_touching[key] += 1
            self._lock.notify_all()

    def _fill(self, handle: StateHandle, slot: int, mark: torch.cuda.Event | None) -> None:
        if self.unified:
            state = handle.read()
            self.layout.check(state)
            with self._order.after(mark):
                self._rows.write(slot, state)
            return
        source = self.cache.fetch(handle)
        try:
            started = time.perf_counter()
            with self._order.after(mark):
                self._rows.copy_row(slot, self.cache.rows, source.slot)
            seconds = time.perf_counter() - started
        finally:
            self.cache.release(source)
        with self._lock:
            self._counters.h2d_seconds += seconds
            self._counters.h2d_bytes += self.layout.row_bytes

    def _clear(self, slot: int, mark: torch.cuda.Event | None) -> None:
        with self._order.after(mark):
            self._rows.clear(slot)

    def _forget(self, slot: int) -> None:
        """No kernel is launched for what was in the slot."""
        for key in self._rows.touched[slot]:
            self._num_touching[key] -= 1
        self._rows.touched[slot] = ()


def _error_of(work: Callable[[], None]) -> BaseException | None:
    """Run and return what was raised, whatever it is: only those who want this state are to learn of it."""
    try:
        work()
    except BaseException as error:
        cause: BaseException | None = error
        while cause is not None:  # the frames hold the tensors of the state
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__context__
        return error
    return None
