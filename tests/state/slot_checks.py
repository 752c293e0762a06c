"""Slots for the model of states.py, states whose loads end when a test says, and what a slot must hold."""

from __future__ import annotations

import queue
from dataclasses import replace

import torch

from pss_engine.state import SessionState, StateHandle, StateSlots
from pss_engine.state.lru import SlotRef
from tests.state.states import ALL_KEYS, TARGETS

LONG = 60.0  # seconds; for what happens at once unless it is broken


def make_slots(num_slots=2, max_rank=8, **options) -> StateSlots:
    return StateSlots(TARGETS, range(2, 4), num_slots, max_rank, **options)


def hold(slots: StateSlots, state: SessionState | StateHandle) -> SlotRef:
    """Acquire as an engine does that has nothing else to do."""
    handle = state if isinstance(state, StateHandle) else StateHandle.of(state)
    while True:
        ref = slots.acquire(handle)
        if ref is not None:
            return ref
        assert slots.wait(LONG), "nothing is being loaded, and yet the state is not ready"


def load(slots: StateSlots, state: SessionState | StateHandle) -> None:
    """Make a state resident, held by nobody."""
    slots.release(hold(slots, state))


def wait_for_loads(slots: StateSlots, num_ended: int) -> None:
    while slots.counters.loads + slots.counters.failed_loads < num_ended:
        assert slots.wait(LONG)


def assert_slot_holds(slots: StateSlots, slot: int, state: SessionState) -> None:
    """Every factor is the state's own, and everything that it does not reach is zero."""
    for key in ALL_KEYS:
        view, pair = slots.view(*key), state.factors.get(key)
        if pair is None:
            assert view is None or not (view.ranks[slot] or view.scaling[slot] or view.lora_a[slot].any())
            assert view is None or not view.lora_b[slot].any()
            continue
        dtype = view.lora_a.dtype
        assert int(view.ranks[slot]) == pair.rank and view.scaling[slot].cpu() == torch.tensor(pair.scaling)
        assert torch.equal(view.lora_a[slot, : pair.rank].cpu(), pair.a.to(dtype))
        assert torch.equal(view.lora_b[slot, :, : pair.rank].cpu(), pair.b.to(dtype))
        assert not view.lora_a[slot, pair.rank :].any() and not view.lora_b[slot, :, pair.rank :].any()


class Loads:
    """Handles whose loads end one after the other, when and how a test says."""

    def __init__(self) -> None:
        self.num_begun = 0
        self._outcomes: queue.SimpleQueue[SessionState | Exception | None] = queue.SimpleQueue()

    def handle(self, state: SessionState) -> StateHandle:
        def load() -> SessionState:
            self.num_begun += 1
            outcome = self._outcomes.get(timeout=LONG)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome or state

        return replace(StateHandle.of(state), load=load)

    def end(self, outcome: SessionState | Exception | None = None) -> None:
        """The next load gives its state, another one, or raises."""
        self._outcomes.put(outcome)
