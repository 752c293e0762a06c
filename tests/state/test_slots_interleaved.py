"""Any order of acquire, release, evict and of loads that end well, badly or late serves every state as itself."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pss_engine.errors import CapacityError, PSSError, StateFormatError
from pss_engine.state import StateHandle
from pss_engine.state.lru import SlotRef
from tests.state.slot_checks import Loads, assert_slot_holds, hold, make_slots, wait_for_loads
from tests.state.states import QV_KEYS, make_state

SHAPES = [(QV_KEYS, 8), (QV_KEYS[:1], 1), ([(2, "up_proj"), (3, "q_proj")], 3), (QV_KEYS[1:], 4), ([(3, "k_proj")], 8)]
STATES = {f"s{i}": make_state(f"s{i}", keys=keys, rank=rank, seed=i) for i, (keys, rank) in enumerate(SHAPES)}
STRANGER = make_state("stranger", seed=99)
NAMES = st.sampled_from(sorted(STATES))


class Interleaved(RuleBasedStateMachine):
    """Against a model: which states are held, idle (oldest first), being loaded (in order) or failed."""

    @initialize(num_slots=st.integers(1, 3), num_host_rows=st.integers(0, 3))
    def start(self, num_slots, num_host_rows):
        unified = not num_host_rows
        row_bytes = make_slots().layout.row_bytes
        self.slots = make_slots(num_slots, unified=unified, max_cache_bytes=num_host_rows * row_bytes)
        self.loads = Loads()
        self.handles = {name: self.loads.handle(state) for name, state in STATES.items()}
        self.held: dict[str, list[SlotRef]] = {}
        self.idle: list[str] = []
        self.loading: list[str] = []
        self.failed: dict[str, type[Exception]] = {}
        self.num_ended = 0
        self.generations = [0] * num_slots
        self.stale: set[SlotRef] = set()

    @rule(name=NAMES)
    def acquire(self, name):
        if name in self.failed:
            with pytest.raises(self.failed.pop(name)):
                self.slots.acquire(self.handles[name])
            return
        ref = self.slots.acquire(self.handles[name])
        if name in self.held or name in self.idle:
            assert ref is not None
            assert ref.generation >= self.generations[ref.slot]
            self.generations[ref.slot] = ref.generation
            self.held.setdefault(name, []).append(ref)
            self.stale.discard(ref)
            if name in self.idle:
                self.idle.remove(name)
            return
        assert ref is None
        is_full = len(self.held) + len(self.idle) + len(self.loading) == self.slots.num_slots
        if name not in self.loading and (self.idle or not is_full):
            if is_full:
                self.idle.pop(0)
            self.loading.append(name)
            self.settle()

    @precondition(lambda self: self.loading)
    @rule(outcome=st.sampled_from(["well", "well", "well", "raises", "another state"]))
    def end_a_load(self, outcome):
        self.loads.end({"well": None, "raises": OSError("gone"), "another state": STRANGER}[outcome])
        self.ended({"well": None, "raises": OSError, "another state": StateFormatError}[outcome])
        self.settle()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        name = data.draw(st.sampled_from(sorted(self.held)))
        ref = self.held[name].pop()
        self.slots.release(ref)
        if not self.held[name]:
            del self.held[name]
            self.idle.append(name)
            self.stale.add(ref)

    @rule(name=NAMES)
    def evict(self, name):
        digest = STATES[name].digest
        if name in self.held or name in self.loading:
            with pytest.raises(CapacityError):
                self.slots.evict(digest)
        else:
            self.slots.evict(digest)
            assert not self.slots.resident(digest) and not self.slots.cache.resident(digest)
            self.idle = [other for other in self.idle if other != name]
        self.failed.pop(name, None)

    def settle(self):
        """Loads that find their state in host memory end by themselves."""
        while self.loading and not self.slots.unified and self.slots.cache.resident(STATES[self.loading[0]].digest):
            self.ended(None)

    def ended(self, failure):
        name = self.loading.pop(0)
        self.num_ended += 1
        wait_for_loads(self.slots, self.num_ended)
        if failure is None:
            self.idle.append(name)
        else:
            self.failed[name] = failure

    @invariant()
    def every_slot_is_right(self):
        self.slots.check()
        for name, state in STATES.items():
            assert self.slots.resident(state.digest) == (name in self.held or name in self.idle)
        assert self.slots.num_loading == len(self.loading)
        for name, refs in self.held.items():
            for ref in refs:
                self.slots.check_ref(ref)
            assert len(set(refs)) == 1
            assert_slot_holds(self.slots, refs[0].slot, STATES[name])
        for ref in self.stale:
            with pytest.raises(PSSError):
                self.slots.check_ref(ref)

    def teardown(self):
        for _ in self.loading:
            self.loads.end()
        self.slots.close()
        self.slots.check()


TestInterleaved = Interleaved.TestCase
TestInterleaved.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "copying"])
def test_a_thousand_loads_and_evictions_leave_memory_where_it_was(unified):
    slots = make_slots(num_slots=2, unified=unified)
    alive = weakref.WeakSet()

    def read(seed):
        state = make_state(f"s{seed}", keys=QV_KEYS, rank=1 + seed, seed=seed)
        alive.add(state)
        return state

    states = [make_state(f"s{seed}", keys=QV_KEYS, rank=1 + seed, seed=seed) for seed in range(8)]
    handles = [replace(StateHandle.of(state), load=lambda seed=seed: read(seed)) for seed, state in enumerate(states)]

    def cycle(count):
        for index in range(count):
            ref = hold(slots, handles[index % 8])
            if index % 50 == 0:
                assert_slot_holds(slots, ref.slot, states[index % 8])
            slots.release(ref)
            if index % 3 == 0:
                slots.evict(handles[index % 8].digest)
        gc.collect()
        view = slots.view(2, "v_proj")
        return slots.num_bytes, view.lora_a.data_ptr(), threading.active_count(), len(gc.get_objects()), len(alive)

    num_bytes, address, num_threads, num_objects, _ = cycle(50)
    later = cycle(1000)
    assert later[:3] == (num_bytes, address, num_threads)
    assert later[3] <= num_objects + 100, "Python objects pile up"
    assert later[4] == 0, "a state is kept as its packed row only"
    assert slots.counters.loads == slots.counters.misses >= 1048
    slots.check()
    slots.close()
