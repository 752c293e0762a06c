"""Device slots: what a row reads is exactly the state it holds, whatever was there before."""

from __future__ import annotations

import random

import pytest
import torch

from pss_engine.errors import CapacityError, ConfigError, PSSError, StateFormatError
from pss_engine.state import SessionState, StateSlots
from tests.state.states import ALL_KEYS, QV_KEYS, TARGETS, make_state, make_tensors


def make_slots(num_slots=2, max_rank=8, staged=False, **options):
    slots = StateSlots(TARGETS, range(2, 4), num_slots, max_rank, **options)
    if staged:  # as on an accelerator: rows are put together beside the buffer
        slots._staging = torch.full_like(slots._buffer[0], 7.0)
    return slots


def delta(slots, slot, key, x):
    """What the LoRA op adds for rows of one slot, over the full padded rank."""
    view = slots.view(*key)
    if view is None:
        return torch.zeros(x.shape[0], TARGETS[key[1]][1])
    return (x @ view.lora_a[slot].float().T) @ view.lora_b[slot].float().T * view.scaling[slot]


def assert_slot_holds(slots, slot, state):
    for key in ALL_KEYS:
        x = torch.randn(3, TARGETS[key[1]][0], generator=torch.Generator().manual_seed(1))
        pair = state.factors.get(key)
        wanted = (x @ pair.a.T) @ pair.b.T * pair.scaling if pair else torch.zeros(3, TARGETS[key[1]][1])
        torch.testing.assert_close(delta(slots, slot, key, x), wanted)
        view = slots.view(*key)
        assert view is None or int(view.ranks[slot]) == (pair.rank if pair else 0)


def test_views_have_the_layout_the_kernels_take():
    slots = make_slots(num_slots=3, max_rank=5)
    slots.acquire(make_state())
    view = slots.view(3, "down_proj")
    assert view.lora_a.shape == (3, 5, 48) and view.lora_b.shape == (3, 32, 5)
    assert view.lora_a.stride()[1:] == (48, 1) and view.lora_b.stride()[1:] == (5, 1)
    assert view.scaling.dtype == torch.float32 and view.ranks.dtype == torch.int32
    assert view.scaling.is_contiguous() and view.ranks.is_contiguous()
    assert view.lora_a.data_ptr() % 64 == slots.view(2, "q_proj").lora_a.data_ptr() % 64


@pytest.mark.parametrize("staged", [False, True])
def test_states_of_different_ranks_and_modules_live_side_by_side(staged):
    slots = make_slots(num_slots=3, staged=staged)
    uneven = {key: 1 + index for index, key in enumerate(QV_KEYS)}
    states = [
        make_state("a", rank=8),
        make_state("b", keys=QV_KEYS, rank=uneven, seed=1),
        make_state("c", rank=3, seed=2),
    ]
    for state, ref in [(state, slots.acquire(state)) for state in states]:
        assert_slot_holds(slots, ref.slot, state)
    slots.check()


@pytest.mark.parametrize("staged", [False, True])
def test_no_factor_of_an_evicted_state_is_left_behind(staged):
    slots = make_slots(num_slots=1, staged=staged)
    slots.release(slots.acquire(make_state("big", rank=8)))
    small = make_state("small", keys=[(3, "v_proj")], rank=1, seed=1)
    ref = slots.acquire(small)
    assert_slot_holds(slots, ref.slot, small)
    view = slots.view(3, "v_proj")
    assert view.lora_a.count_nonzero() == small.factors[3, "v_proj"].a.count_nonzero()
    assert view.lora_b.count_nonzero() == small.factors[3, "v_proj"].b.count_nonzero()
    slots.release(ref)
    slots.evict(small.digest)
    assert view.lora_a.count_nonzero() == view.scaling.count_nonzero() == view.ranks.count_nonzero() == 0
    slots.check()


def test_a_layer_that_no_resident_state_touches_has_no_view():
    slots = make_slots(num_slots=2)
    assert slots.view(2, "q_proj") is None
    first, second = make_state("a", keys=QV_KEYS), make_state("b", keys=[(2, "q_proj"), (2, "up_proj")])
    slots.release(slots.acquire(first))
    slots.release(slots.acquire(second))
    assert slots.view(2, "q_proj") is not None and slots.view(2, "up_proj") is not None
    assert slots.view(3, "up_proj") is None and slots.view(0, "q_proj") is None
    slots.evict(second.digest)
    assert slots.view(2, "q_proj") is not None and slots.view(2, "up_proj") is None
    slots.evict(first.digest)
    assert slots.view(2, "q_proj") is None


def test_a_resident_state_is_found_by_content_and_loaded_once():
    slots = make_slots()
    one, same, other = (slots.acquire(state) for state in (make_state("a"), make_state("b"), make_state("a", seed=1)))
    assert one == same != other
    assert (slots.hits, slots.misses, slots.loads, slots.evictions) == (1, 2, 2, 0)
    assert slots.loaded_bytes == slots.num_bytes
    assert slots.resident(make_state().digest) and not slots.resident("0" * 64)


def test_a_state_in_use_is_pinned_and_a_stale_hold_is_noticed():
    slots = make_slots(num_slots=1)
    first = make_state("a")
    ref = slots.acquire(first)
    with pytest.raises(CapacityError, match="state slots"):
        slots.acquire(make_state("b", seed=1))
    with pytest.raises(CapacityError, match="held 1 times"):
        slots.evict(first.digest)
    assert_slot_holds(slots, ref.slot, first)
    slots.release(ref)
    slots.acquire(make_state("b", seed=1))
    with pytest.raises(PSSError, match="generation 1 was held, it is at 2"):
        slots.check_ref(ref)


@pytest.mark.parametrize(
    ("state", "match"),
    [
        (make_state(rank=9), "rank 9 is over max_rank 8"),
        (make_state(keys=[(1, "q_proj")]), r"layer 1 is outside the session layers 2\.\.3"),
        (make_state(keys=[(4, "q_proj")]), "layer 4 is outside"),
        (
            SessionState.from_tensors("x", {(2, "q_proj"): (torch.zeros(4, 64), torch.zeros(32, 4))}, 8.0),
            "lora_A in_features is 64, the model's q_proj has 32",
        ),
        (
            SessionState.from_tensors("x", {(2, "qkv_proj"): (torch.zeros(4, 32), torch.zeros(64, 4))}, 8.0),
            "module qkv_proj is not in this model",
        ),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(state, match):
    slots = make_slots(num_slots=1)
    resident = make_state("a", keys=QV_KEYS)
    slots.release(slots.acquire(resident))
    with pytest.raises(StateFormatError, match=match):
        slots.acquire(state)
    assert slots.resident(resident.digest) and slots.misses == 1
    assert_slot_holds(slots, 0, resident)
    slots.check()


def test_a_load_that_fails_frees_its_slot(monkeypatch):
    slots = make_slots(num_slots=1)
    slots.release(slots.acquire(make_state("a")))
    state = make_state("b", seed=1)

    def fail(*_):
        raise MemoryError("out of memory")

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(slots, "_split", fail)
        slots.acquire(state)
    slots.check()
    assert not slots.resident(state.digest) and slots.view(2, "q_proj") is None
    assert_slot_holds(slots, slots.acquire(state).slot, state)


def test_narrow_slots_round_once():
    slots = make_slots(dtype=torch.bfloat16)
    state = make_state()
    ref = slots.acquire(state)
    view, pair = slots.view(2, "k_proj"), state.factors[2, "k_proj"]
    assert torch.equal(view.lora_a[ref.slot, :4], pair.a.bfloat16())
    assert torch.equal(view.lora_b[ref.slot, :, :4], pair.b.bfloat16())


def test_many_states_over_few_slots_always_read_their_own():
    slots = make_slots(num_slots=3)
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
            held.append((state, slots.acquire(state)))
    slots.check()
    assert slots.hits and slots.evictions and slots.loads == slots.misses


def test_books_that_do_not_balance_are_noticed():
    slots = make_slots()
    ref = slots.acquire(make_state())
    slots.view(2, "q_proj").ranks[ref.slot] = 0
    with pytest.raises(PSSError, match="do not balance: layer 2 q_proj"):
        slots.check()


@pytest.mark.parametrize("options", [{"max_rank": 0}, {"num_slots": 0}])
def test_sizes_of_nothing_are_mistakes(options):
    with pytest.raises(ConfigError, match="at least 1"):
        make_slots(**options)
    with pytest.raises(ConfigError, match="layers"):
        StateSlots(TARGETS, range(2, 2), 1, 1)


@pytest.mark.gpu
def test_slots_on_a_gpu_hold_what_slots_on_the_cpu_hold():
    slots, reference = make_slots(num_slots=1, device="cuda"), make_slots(num_slots=1)
    for state in (make_state("a", rank=8), make_state("b", keys=QV_KEYS, rank=3, seed=1)):
        slots.release(slots.acquire(state))
        reference.release(reference.acquire(state))
        for key in state.factors:
            for name in ("lora_a", "lora_b", "scaling", "ranks"):
                assert torch.equal(getattr(slots.view(*key), name).cpu(), getattr(reference.view(*key), name))
        slots.check()
