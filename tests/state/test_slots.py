"""Slots: what a row reads is exactly the state it holds, whatever was there before and whatever loads beside it."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest
import torch

from pss_engine.errors import CapacityError, ConfigError, PSSError
from pss_engine.state import SessionState, StateHandle, StateSlots
from pss_engine.state.row_order import shares_host_memory
from tests.state.slot_checks import LONG, Loads, assert_slot_holds, hold, load, make_slots, wait_for_loads
from tests.state.states import ALL_KEYS, QV_KEYS, TARGETS, make_state, make_tensors

A, B, C = (make_state(name, keys=QV_KEYS, seed=seed) for seed, name in enumerate("abc"))


@pytest.fixture(params=[True, False], ids=["unified", "copying"])
def unified(request):
    return request.param


def test_views_have_the_layout_the_kernels_take(unified):
    slots = make_slots(num_slots=3, max_rank=5, unified=unified)
    load(slots, make_state())
    view = slots.view(3, "down_proj")
    assert view.lora_a.shape == (3, 5, 48) and view.lora_b.shape == (3, 32, 5)
    assert view.lora_a.stride()[1:] == (48, 1) and view.lora_b.stride()[1:] == (5, 1)
    assert view.scaling.dtype == torch.float32 and view.ranks.dtype == torch.int32
    assert view.scaling.is_contiguous() and view.ranks.is_contiguous()
    assert view.lora_a.data_ptr() % 64 == slots.view(2, "q_proj").lora_a.data_ptr() % 64


def test_states_of_different_ranks_and_modules_live_side_by_side(unified):
    slots = make_slots(num_slots=3, unified=unified)
    uneven = {key: 1 + index for index, key in enumerate(QV_KEYS)}
    states = [make_state("x", rank=8), make_state("y", keys=QV_KEYS, rank=uneven, seed=1), make_state("z", rank=3)]
    for state, ref in [(state, hold(slots, state)) for state in states]:
        assert_slot_holds(slots, ref.slot, state)
    slots.check()


def test_no_factor_of_an_evicted_state_is_left_behind(unified):
    slots = make_slots(num_slots=1, unified=unified)
    load(slots, make_state("big", rank=8))
    small = make_state("small", keys=[(3, "v_proj")], rank=1, seed=1)
    ref = hold(slots, small)
    assert_slot_holds(slots, ref.slot, small)
    rows, num_numbers = slots._rows, sum(t.numel() for pair in small.tensors().values() for t in pair)
    assert rows.rows.count_nonzero() == num_numbers
    slots.release(ref)
    slots.evict(small.digest)
    assert not (rows.rows.any() or rows.scaling.any() or rows.ranks.any() or slots.cache.rows.rows.any())
    slots.check()


def test_a_layer_that_no_resident_state_touches_has_no_view(unified):
    slots = make_slots(num_slots=2, unified=unified)
    assert slots.view(2, "q_proj") is None
    first, second = make_state("a", keys=QV_KEYS), make_state("b", keys=[(2, "q_proj"), (2, "up_proj")])
    load(slots, first)
    load(slots, second)
    assert slots.view(2, "q_proj") is not None and slots.view(2, "up_proj") is not None
    assert slots.view(3, "up_proj") is None and slots.view(0, "q_proj") is None
    slots.evict(second.digest)
    assert slots.view(2, "q_proj") is not None and slots.view(2, "up_proj") is None
    slots.evict(first.digest)
    assert slots.view(2, "q_proj") is None


def test_a_state_that_is_not_there_is_loaded_while_the_engine_goes_on(unified):
    slots, loads = make_slots(unified=unified), Loads()
    handle = loads.handle(A)
    for _ in range(3):
        assert slots.acquire(handle) is None
    assert slots.num_loading == 1 and not slots.resident(A.digest) and slots.view(2, "q_proj") is None
    loads.end()
    assert slots.wait(LONG)
    assert slots.resident(A.digest)
    assert_slot_holds(slots, slots.acquire(handle).slot, A)
    counters = slots.counters
    assert (counters.waits, counters.misses, counters.loads, counters.hits) == (3, 1, 1, 0)
    assert counters.loaded_bytes == A.num_bytes and counters.load_seconds > 0 and loads.num_begun == 1


def test_a_slow_load_keeps_nobody_else_waiting(unified):
    slots, loads = make_slots(unified=unified), Loads()
    load(slots, A)
    assert slots.acquire(loads.handle(B)) is None
    for _ in range(3):
        load(slots, A)
    assert slots.counters.hits == 3 and slots.num_loading == 1
    loads.end()
    load(slots, loads.handle(B))
    slots.check()


def test_a_resident_state_is_found_by_content_and_loaded_once(unified):
    slots = make_slots(unified=unified)
    one, same, other = (hold(slots, state) for state in (make_state("a"), make_state("b"), make_state("a", seed=1)))
    assert one == same != other
    counters = slots.counters
    assert (counters.hits, counters.misses, counters.loads, counters.evictions) == (1, 2, 2, 0)
    assert slots.resident(make_state().digest) and not slots.resident("0" * 64)


def test_a_state_in_use_or_being_loaded_is_never_evicted(unified):
    slots, loads = make_slots(num_slots=2, unified=unified), Loads()
    ref = hold(slots, A)
    assert slots.acquire(loads.handle(B)) is None
    for _ in range(2):
        assert slots.acquire(loads.handle(C)) is None
    assert slots.num_loading == 1, "the third state has to wait for a slot"
    with pytest.raises(CapacityError, match="held 1 times"):
        slots.evict(A.digest)
    with pytest.raises(CapacityError, match="being filled"):
        slots.evict(B.digest)
    assert_slot_holds(slots, ref.slot, A)
    slots.release(ref)
    assert slots.acquire(loads.handle(C)) is None and slots.num_loading == 2
    loads.end()
    loads.end()
    hold(slots, loads.handle(C))
    with pytest.raises(PSSError, match="generation 1 was held, it is at 2"):
        slots.check_ref(ref)


def test_a_state_whose_request_is_gone_waits_for_the_next_one(unified):
    slots = make_slots(num_slots=1, unified=unified)
    assert slots.acquire(StateHandle.of(A)) is None and slots.wait(LONG)
    assert slots.resident(A.digest) and slots.counters.loads == 1
    load(slots, B)
    assert not slots.resident(A.digest)
    slots.check()


def test_waiting_ends_with_any_load_and_never_misses_one():
    slots, loads = make_slots(num_slots=3), Loads()
    assert slots.wait(LONG) is False, "nothing is being loaded"
    for state in (A, B):
        slots.acquire(loads.handle(state))
    assert slots.wait(0.0) is False
    loads.end()
    wait_for_loads(slots, 1)
    slots.acquire(loads.handle(C))
    loads.end(OSError("the disk is gone"))
    assert slots.wait(LONG), "a failed load is news as well"
    loads.end()
    wait_for_loads(slots, 3)
    assert slots.wait(0.0) is False


def test_a_load_that_ended_before_the_wait_is_seen_by_every_thread():
    slots, loads, seen = make_slots(), Loads(), []
    for state in (A, B):
        slots.acquire(loads.handle(state))
    loads.end()
    wait_for_loads(slots, 1)
    thread = threading.Thread(target=lambda: seen.append(slots.wait(LONG)))
    thread.start()
    thread.join(LONG)
    assert seen == [True] and slots.num_loading == 1
    loads.end()


def test_host_memory_spares_the_disk_where_slots_have_memory_of_their_own():
    row = make_slots().layout.row_bytes
    slots, loads = make_slots(num_slots=1, unified=False, max_cache_bytes=2 * row), Loads()
    for state in (A, B):
        loads.end()
        load(slots, loads.handle(state))
    load(slots, loads.handle(A))
    assert loads.num_begun == 2, "the third load came from host memory"
    counters = slots.counters
    assert (counters.host_hits, counters.host_misses, counters.host_evictions) == (1, 2, 0)
    assert counters.h2d_bytes == 3 * row and counters.h2d_seconds > 0
    slots.evict(A.digest)
    assert not slots.cache.resident(A.digest) and slots.cache.resident(B.digest)
    assert slots.counters.host_evictions == 1
    slots.check()


def test_where_the_host_row_is_the_slot_there_is_one_memory_and_no_copy():
    slots = make_slots(num_slots=3)
    load(slots, A)
    assert slots.num_bytes == slots.cache.num_bytes and slots.cache.max_bytes == 3 * slots.layout.row_bytes
    assert slots.view(2, "q_proj").lora_a.data_ptr() >= slots.cache.rows.rows.data_ptr()
    counters = slots.counters
    assert counters.h2d_bytes == counters.host_hits == counters.host_misses == 0
    assert slots.counters.to_dict()["loads"] == 1


def test_the_device_says_whether_it_shares_the_hosts_memory(monkeypatch):
    assert shares_host_memory(torch.device("cpu")) and make_slots().unified
    for is_integrated in (True, False):
        properties = type("Properties", (), {"is_integrated": is_integrated, "name": "Orin"})()
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, found=properties: found)
        assert shares_host_memory(torch.device("cuda", 0)) is is_integrated


def test_closed_slots_load_no_more():
    slots, loads = make_slots(), Loads()
    load(slots, A)
    for state in (B, C):
        slots.acquire(loads.handle(state))
    closing = threading.Thread(target=slots.close)
    closing.start()
    loads.end()
    loads.end()
    closing.join(LONG)
    slots.close()
    assert slots.num_loading == 0
    with pytest.raises(PSSError, match="the state slots are closed"):
        slots.acquire(loads.handle(B))
    slots.check()


def test_narrow_slots_round_once(unified):
    slots = make_slots(dtype=torch.bfloat16, unified=unified)
    assert_slot_holds(slots, hold(slots, make_state()).slot, make_state())


def test_many_states_over_few_slots_always_read_their_own(unified):
    slots = make_slots(num_slots=3, unified=unified)
    choices = random.Random(0)
    states = [
        SessionState.from_tensors(
            f"s{i}", make_tensors(choices.sample(ALL_KEYS, 5), choices.randint(1, 8), seed=i), 8.0
        )
        for i in range(8)
    ]
    held = []
    for _ in range(120):
        if len(held) == 3 or (held and choices.random() < 0.5):
            state, ref = held.pop(choices.randrange(len(held)))
            slots.check_ref(ref)
            assert_slot_holds(slots, ref.slot, state)
            slots.release(ref)
        else:
            state = choices.choice(states)
            held.append((state, hold(slots, state)))
    slots.check()
    counters = slots.counters
    assert counters.hits and counters.evictions and counters.loads == counters.misses


def test_books_that_do_not_balance_are_noticed():
    slots = make_slots()
    ref = hold(slots, make_state())
    slots.view(2, "q_proj").ranks[ref.slot] = 0
    with pytest.raises(PSSError, match="do not balance: layer 2 q_proj"):
        slots.check()
    slots._counters.loads += 1
    with pytest.raises(PSSError, match="do not balance: 1 misses, 2 loads"):
        slots.check()


@pytest.mark.parametrize("options", [{"max_rank": 0}, {"num_slots": 0}])
def test_sizes_of_nothing_are_mistakes(options):
    with pytest.raises(ConfigError, match="at least 1"):
        make_slots(**options)
    with pytest.raises(ConfigError, match="layers"):
        StateSlots(TARGETS, range(2, 2), 1, 1)
    with pytest.raises(ConfigError, match="one state takes"):
        make_slots(unified=False, max_cache_bytes=5)


def test_threads_that_use_one_state_load_it_once(unified):
    slots, reads, wrong = make_slots(num_slots=1, unified=unified), [], []
    handle = replace(StateHandle.of(A), load=lambda: (reads.append(1), A)[1])

    def use():
        for _ in range(25):
            ref = hold(slots, handle)
            slots.check_ref(ref)
            if ref.slot != 0 or ref.generation != 1:
                wrong.append(ref)
            slots.release(ref)

    threads = [threading.Thread(target=use) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not wrong and len(reads) == 1 and slots.counters.misses == 1
    slots.check()


@pytest.mark.gpu
@pytest.mark.parametrize("unified", [True, False], ids=["page-locked", "copied"])
def test_slots_on_a_gpu_hold_what_slots_on_the_cpu_hold(unified):
    slots = make_slots(num_slots=1, device="cuda", unified=unified)
    for state in (make_state("a", rank=8), make_state("b", keys=QV_KEYS, rank=3, seed=1), make_state("a", rank=8)):
        ref = hold(slots, state)
        assert slots.view(2, "q_proj").lora_a.is_cuda
        assert_slot_holds(slots, ref.slot, state)
        slots.release(ref)
        slots.check()
    assert slots.cache.rows.rows.is_pinned()
    assert bool(slots.counters.h2d_bytes) is not unified
    slots.close()


@pytest.mark.gpu
@pytest.mark.parametrize("unified", [True, False], ids=["page-locked", "copied"])
def test_a_row_that_a_kernel_still_reads_is_not_overwritten(unified):
    slots = make_slots(num_slots=1, device="cuda", unified=unified)
    load(slots, A)
    view = slots.view(2, "q_proj")
    torch.cuda._sleep(200_000_000)  # cycles; what follows waits behind it on the stream
    read = view.lora_a[0].clone()
    assert slots.acquire(StateHandle.of(B)) is None
    assert_slot_holds(slots, hold(slots, B).slot, B)
    assert torch.equal(read[:4].cpu(), A.factors[2, "q_proj"].a)
    slots.close()
