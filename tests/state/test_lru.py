"""The slot books: held slots stay, the one idle longest goes, and everything adds up under any sequence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pss_engine.errors import CapacityError, ConfigError, PSSError
from pss_engine.state.lru import Placement, SlotLRU, SlotRef
from tests.state.states import REPOSITORY


def fill(lru, key):
    placement = lru.reserve(key)
    lru.publish(placement.ref.slot)
    return placement


def fill_and_hold(lru, key):
    fill(lru, key)
    return lru.hold(key)


def test_the_key_that_is_idle_longest_goes_first():
    lru = SlotLRU(3)
    refs = {key: fill_and_hold(lru, key) for key in "abc"}
    for key in "bac":
        lru.release(refs[key])
    lru.release(lru.hold("b"))
    evicted = [fill(lru, key).evicted for key in "de"]
    assert evicted == ["a", "c"]
    assert lru.filled() == {0: "d", 1: "b", 2: "e"}


def test_a_held_slot_is_never_given_away():
    lru = SlotLRU(2)
    held = fill_and_hold(lru, "a")
    assert lru.reserve("b") is not None
    assert lru.reserve("c") is None, "one is held and one is being filled"
    with pytest.raises(CapacityError, match="held 1 times"):
        lru.retire("a")
    with pytest.raises(CapacityError, match="being filled"):
        lru.retire("b")
    lru.check_ref(held)
    lru.check()


def test_a_key_is_had_only_once_it_is_filled():
    lru = SlotLRU(2)
    slot = lru.reserve("a").ref.slot
    assert lru.hold("a") is None and not lru.is_filled("a")
    assert lru.reserve("a") is None, "one load for each key"
    lru.publish(slot)
    assert lru.is_filled("a") and lru.hold("a") == SlotRef(slot, 1)


def test_a_slot_that_was_not_filled_is_free_again():
    lru = SlotLRU(1)
    placement = lru.reserve("a")
    lru.free(placement.ref.slot)
    assert lru.hold("a") is None and lru.filled() == {}
    assert lru.reserve("b") == Placement(SlotRef(0, 2), evicted=None)


def test_a_retired_slot_goes_to_nobody_before_it_is_free():
    lru = SlotLRU(1)
    fill(lru, "a")
    assert lru.retire("a") == 0 and lru.retire("a") is None
    assert lru.hold("a") is None and lru.reserve("b") is None
    lru.free(0)
    assert lru.reserve("b") is not None


def test_only_a_slot_that_is_being_filled_is_published_or_freed():
    lru = SlotLRU(1)
    fill(lru, "a")
    for use in (lru.publish, lru.free):
        with pytest.raises(PSSError, match="is not being filled"):
            use(0)
    lru.retire("a")
    with pytest.raises(PSSError, match="cannot be published"):
        lru.publish(0)


def test_a_stale_or_unheld_reference_is_noticed():
    lru = SlotLRU(1)
    first = fill_and_hold(lru, "a")
    lru.release(first)
    with pytest.raises(PSSError, match="0 holders"):
        lru.release(first)
    second = fill_and_hold(lru, "b")
    for use in (lru.check_ref, lru.release):
        with pytest.raises(PSSError, match="generation 1 was held, it is at 2"):
            use(first)
    lru.check_ref(second)
    with pytest.raises(PSSError, match=r"slots 0\.\.0"):
        lru.check_ref(SlotRef(1, 1))


def test_no_slots_is_a_mistake():
    with pytest.raises(ConfigError, match="num_slots=0"):
        SlotLRU(0)


@pytest.mark.parametrize("decider", ["lru", "load_books", "counters", "handle", "loader"])
def test_those_that_decide_do_not_import_torch(decider):
    code = f"import sys, pss_engine.state.{decider}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


@pytest.mark.parametrize("damage", ["_slots", "_idle", "_free"])
def test_books_that_do_not_balance_are_noticed(damage):
    lru = SlotLRU(2)
    fill(lru, "a")
    getattr(lru, damage).clear()
    with pytest.raises(PSSError, match="do not balance"):
        lru.check()


class SlotBooks(RuleBasedStateMachine):
    """Against a model: a dict of holds, a list of idle keys, oldest first, and the keys that are being filled."""

    @initialize(num_slots=st.integers(1, 4))
    def start(self, num_slots):
        self.lru = SlotLRU(num_slots)
        self.holds: dict[str, list[SlotRef]] = {}
        self.idle: list[str] = []
        self.filling: dict[str, SlotRef] = {}
        self.retired: list[int] = []
        self.stale: set[SlotRef] = set()

    @property
    def is_full(self):
        return len(self.holds) + len(self.idle) + len(self.filling) + len(self.retired) == self.lru.num_slots

    @rule(key=st.sampled_from("abcdef"))
    def reserve(self, key):
        placement = self.lru.reserve(key)
        if key in self.holds or key in self.idle or key in self.filling or (self.is_full and not self.idle):
            assert placement is None
            return
        assert placement.evicted == (self.idle.pop(0) if self.is_full else None)
        self.filling[key] = placement.ref

    @precondition(lambda self: self.filling)
    @rule(data=st.data(), is_well=st.booleans())
    def end_fill(self, data, is_well):
        key = data.draw(st.sampled_from(sorted(self.filling)))
        slot = self.filling.pop(key).slot
        if is_well:
            self.lru.publish(slot)
            self.idle.append(key)
        else:
            self.lru.free(slot)

    @rule(key=st.sampled_from("abcdef"))
    def hold(self, key):
        ref = self.lru.hold(key)
        assert (ref is not None) == (key in self.idle or key in self.holds)
        if ref is not None:
            self.holds.setdefault(key, []).append(ref)
            self.stale.discard(ref)
        if key in self.idle:
            self.idle.remove(key)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data):
        key = data.draw(st.sampled_from(sorted(self.holds)))
        ref = self.holds[key].pop()
        self.lru.release(ref)
        if not self.holds[key]:
            del self.holds[key]
            self.idle.append(key)
            self.stale.add(ref)

    @rule(key=st.sampled_from("abcdef"))
    def retire(self, key):
        if key in self.holds or key in self.filling:
            with pytest.raises(CapacityError):
                self.lru.retire(key)
            return
        slot = self.lru.retire(key)
        assert (slot is not None) == (key in self.idle)
        if slot is not None:
            self.idle.remove(key)
            self.retired.append(slot)

    @precondition(lambda self: self.retired)
    @rule()
    def free(self):
        self.lru.free(self.retired.pop())

    @invariant()
    def books_balance(self):
        self.lru.check()
        assert set(self.lru.filled().values()) == set(self.holds) | set(self.idle)
        assert self.lru.filling() == sorted([ref.slot for ref in self.filling.values()] + self.retired)
        for key, refs in self.holds.items():
            assert {self.lru.check_ref(ref) for ref in refs} == {key}
            assert len(set(refs)) == 1
        for ref in self.stale:
            with pytest.raises(PSSError):
                self.lru.check_ref(ref)


TestSlotBooks = SlotBooks.TestCase
TestSlotBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
