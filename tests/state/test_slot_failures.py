"""A load that fails is the error of who asks for that state, and of nobody else; it leaves no trace."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace

import pytest

from pss_engine.errors import StateFormatError
from pss_engine.state import StateHandle
from pss_engine.state.load_books import MAX_KEPT_FAILURES
from tests.state.slot_checks import LONG, Loads, assert_slot_holds, hold, load, make_slots, wait_for_loads
from tests.state.states import QV_KEYS, make_state

A, B, C = (make_state(name, keys=QV_KEYS, seed=seed) for seed, name in enumerate("abc"))


@pytest.fixture(params=[True, False], ids=["unified", "copying"])
def unified(request):
    return request.param


FAILURES = [
    (OSError("the disk is gone"), OSError, "the disk is gone"),
    (make_state("x", seed=9), StateFormatError, "was asked for"),
    (None, StateFormatError, "rank 9 is over max_rank 8"),
]


@pytest.mark.parametrize(("outcome", "kind", "match"), FAILURES)
def test_a_load_that_fails_tells_who_asks_and_leaves_no_trace(unified, outcome, kind, match):
    slots, loads = make_slots(unified=unified), Loads()
    load(slots, A)
    broken = loads.handle(make_state("broken", rank=9 if outcome is None else 4, seed=5))
    assert slots.acquire(broken) is None
    loads.end(outcome)
    assert slots.wait(LONG)
    with pytest.raises(kind, match=match):
        slots.acquire(broken)
    slots.check()
    assert slots.resident(A.digest) and not slots.resident(broken.digest)
    assert slots._rows.ranks.count_nonzero() == len(QV_KEYS) and slots.counters.failed_loads == 1
    assert slots.acquire(broken) is None, "the next acquire tries again"
    loads.end(OSError("again"))
    assert slots.wait(LONG)
    slots.forget_failure(broken.digest)
    assert slots.acquire(broken) is None
    loads.end(OSError("and again"))


def test_a_write_that_fails_half_way_leaves_no_trace(unified, monkeypatch):
    slots = make_slots(num_slots=1, unified=unified)
    load(slots, A)

    def fail(self, state, row, scaling, ranks):
        row.fill_(3.0)
        ranks.fill_(3)
        raise MemoryError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("pss_engine.state.layout.StateLayout.pack", fail)
        assert slots.acquire(StateHandle.of(B)) is None and slots.wait(LONG)
    with pytest.raises(MemoryError):
        slots.acquire(StateHandle.of(B))
    assert not slots._rows.rows.any() and not slots._rows.ranks.any() and slots.view(2, "q_proj") is None
    slots.check()
    assert_slot_holds(slots, hold(slots, B).slot, B)


def test_a_kept_error_keeps_no_tensor(unified):
    slots, alive = make_slots(unified=unified), weakref.WeakSet()

    def read():
        state = make_state(seed=9)
        alive.add(state)
        return state

    assert slots.acquire(replace(StateHandle.of(A), load=read)) is None and slots.wait(LONG)
    assert slots._books._failures and not alive


def test_the_errors_of_states_that_nobody_asks_for_do_not_pile_up():
    slots = make_slots(num_slots=1)
    for index in range(MAX_KEPT_FAILURES + 5):
        handle = StateHandle(f"{index:064d}", "gone", 1, load=lambda: make_state())
        assert slots.acquire(handle) is None
        wait_for_loads(slots, index + 1)
    assert len(slots._books._failures) == MAX_KEPT_FAILURES
    slots.check()


def test_no_thread_for_the_loader_is_the_error_of_who_asked(monkeypatch):
    slots = make_slots()

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert slots.acquire(StateHandle.of(A)) is None
    with pytest.raises(RuntimeError, match="can't start new thread"):
        slots.acquire(StateHandle.of(A))
    slots.check()
    assert_slot_holds(slots, hold(slots, A).slot, A)
