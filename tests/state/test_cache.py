"""Host memory for states: bounded in bytes, the one not used for longest goes, what is packed does not change."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from pss_engine.errors import CapacityError, ConfigError, StateFormatError
from pss_engine.state import StateCache, StateHandle, StateLayout
from tests.state.slot_checks import LONG
from tests.state.states import QV_KEYS, SHAPE, make_state

LAYOUT = StateLayout(SHAPE, max_rank=8)
HANDLES = [StateHandle.of(make_state(f"s{seed}", seed=seed)) for seed in range(4)]


def make_cache(num_rows=2):
    return StateCache(LAYOUT, num_rows * LAYOUT.row_bytes)


def keep(cache, handle):
    cache.release(cache.fetch(handle))


def test_a_budget_in_bytes_bounds_the_rows():
    cache = StateCache(LAYOUT, 3 * LAYOUT.row_bytes - 1)
    for handle in HANDLES:
        keep(cache, handle)
    assert [cache.resident(handle.digest) for handle in HANDLES] == [False, False, True, True]
    assert cache.num_bytes <= cache.max_bytes + 3 * 256, "rows, and the alignment of three parts"
    assert (cache.counters.host_misses, cache.counters.host_evictions, cache.counters.host_hits) == (4, 2, 0)
    cache.check()


def test_a_budget_for_less_than_one_state_is_a_mistake():
    with pytest.raises(ConfigError, match=f"of {LAYOUT.row_bytes - 1} bytes: one state takes {LAYOUT.row_bytes}"):
        StateCache(LAYOUT, LAYOUT.row_bytes - 1)


def test_a_state_in_memory_is_not_read_again():
    cache, reads = make_cache(), []
    handle = replace(HANDLES[0], load=lambda: (reads.append(1), HANDLES[0].load())[1])
    keep(cache, handle)
    keep(cache, handle)
    assert len(reads) == 1 and cache.counters.host_hits == 1


def test_the_state_not_used_for_longest_goes_first_and_a_held_one_stays():
    cache = make_cache()
    keep(cache, HANDLES[0])
    keep(cache, HANDLES[1])
    held = cache.fetch(HANDLES[0])
    before = cache.rows.rows[held.slot].clone()
    keep(cache, HANDLES[2])
    keep(cache, HANDLES[3])
    assert [cache.resident(handle.digest) for handle in HANDLES] == [True, False, False, True]
    assert torch.equal(cache.rows.rows[held.slot], before)
    with pytest.raises(CapacityError, match="held 1 times"):
        cache.evict(HANDLES[0].digest)


@pytest.mark.parametrize(
    ("handle", "match"),
    [
        (StateHandle.of(make_state(rank=9)), "rank 9 is over max_rank 8"),
        (replace(HANDLES[2], load=lambda: make_state(seed=9)), "was asked for"),
    ],
)
def test_a_state_that_cannot_be_kept_costs_nobody_a_row(handle, match):
    cache = make_cache()
    for sound in HANDLES[:2]:
        keep(cache, sound)
    with pytest.raises(StateFormatError, match=match):
        cache.fetch(handle)
    assert [cache.resident(sound.digest) for sound in HANDLES[:2]] == [True, True]
    cache.check()


def test_a_write_that_fails_leaves_an_empty_row(monkeypatch):
    cache = make_cache(num_rows=1)
    keep(cache, HANDLES[0])

    def fail(state, row, scaling, ranks):
        scaling.fill_(1.0)
        raise MemoryError("out of memory")

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(StateLayout, "pack", lambda self, *args: fail(*args))
        cache.fetch(HANDLES[1])
    assert not cache.rows.rows.any() and not cache.rows.scaling.any()
    cache.check()
    keep(cache, HANDLES[1])


def test_an_evicted_state_leaves_zeros():
    cache = make_cache(num_rows=1)
    keep(cache, HANDLES[0])
    cache.evict(HANDLES[0].digest)
    assert not cache.resident(HANDLES[0].digest) and not cache.rows.rows.any() and not cache.rows.ranks.any()
    cache.evict(HANDLES[0].digest)
    assert cache.counters.host_evictions == 1


def test_threads_that_want_one_state_share_its_row():
    cache, together = make_cache(num_rows=1), threading.Barrier(4, timeout=LONG)
    state, refs = make_state(keys=QV_KEYS), []

    def load():
        together.wait()
        return state

    threads = [
        threading.Thread(target=lambda: refs.append(cache.fetch(replace(StateHandle.of(state), load=load))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(refs) == 4 and len(set(refs)) == 1
    for ref in refs:
        cache.release(ref)
    cache.check()


def test_who_needs_a_row_waits_until_one_is_released():
    cache, done = make_cache(num_rows=1), threading.Event()
    held, begun = cache.fetch(HANDLES[0]), threading.Event()

    def load():
        begun.set()
        return HANDLES[1].load()

    def fetch():
        keep(cache, replace(HANDLES[1], load=load))
        done.set()

    thread = threading.Thread(target=fetch)
    thread.start()
    assert begun.wait(LONG) and not done.is_set()
    cache.release(held)
    thread.join(LONG)
    assert done.is_set() and cache.resident(HANDLES[1].digest)
