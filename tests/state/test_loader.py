"""One thread, started by the first job and gone with its owner; jobs in the order they came."""

from __future__ import annotations

import gc
import threading
import weakref

from pss_engine.state import StateHandle
from pss_engine.state.loader import Loader
from tests.state.slot_checks import LONG, Loads, load, make_slots
from tests.state.states import make_state


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name == "pss-state-loader"]


def test_jobs_run_one_after_the_other_in_their_order():
    loader, done, over = Loader(), [], threading.Event()
    for number in range(20):
        loader.submit(lambda number=number: done.append((number, threading.get_ident())))
    loader.submit(over.set)
    assert over.wait(LONG)
    loader.close()
    assert [number for number, _ in done] == list(range(20))
    assert len({thread for _, thread in done}) == 1 and threading.get_ident() != done[0][1]


def test_closing_ends_the_running_job_and_drops_the_others():
    loader, begun, may_end, done = Loader(), threading.Event(), threading.Event(), []

    def job():
        begun.set()
        done.append(may_end.wait(LONG))

    def other():
        done.append("dropped")

    loader.submit(job)
    loader.submit(other)
    gone = weakref.ref(other)
    del other
    assert begun.wait(LONG)
    closing = threading.Thread(target=loader.close)
    closing.start()
    may_end.set()
    closing.join(LONG)
    loader.close()
    assert done == [True] and gone() is None


def test_no_thread_is_started_before_there_is_something_to_load():
    gc.collect()
    before = loader_threads()
    slots = make_slots()
    slots.check()
    assert slots.wait(0.0) is False and loader_threads() == before
    load(slots, make_state())
    assert len(loader_threads()) == len(before) + 1
    slots.close()
    assert loader_threads() == before


def test_the_thread_goes_with_the_slots_that_it_loads_for():
    gc.collect()
    before = loader_threads()
    slots = make_slots()
    load(slots, make_state())
    gone = weakref.ref(slots)
    del slots
    gc.collect()
    assert gone() is None and loader_threads() == before


def test_slots_that_are_dropped_while_they_load_end_with_the_load():
    gc.collect()
    before, loads = loader_threads(), Loads()
    slots = make_slots()
    slots.acquire(loads.handle(make_state("a")))
    slots.acquire(StateHandle.of(make_state("b", seed=1)))
    ended = threading.Event()
    weakref.finalize(slots, ended.set)
    (thread,) = set(loader_threads()) - set(before)
    del slots
    loads.end()
    assert ended.wait(LONG)
    thread.join(LONG)
    assert not thread.is_alive()
