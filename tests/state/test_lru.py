"""The slot books: held slots stay, the one idle longest goes, and everything adds up under any sequence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pss_engine.errors import CapacityError, ConfigError, PSSError
from pss_engine.state.lru import SlotLRU, SlotRef
from tests.state.states import REPOSITORY


def test_the_key_that_is_idle_longest_goes_first():
    lru = SlotLRU(3)
    refs = {key: lru.acquire(key).ref for key in "abc"}
    for key in "bac":
        lru.release(refs[key])
    lru.release(lru.acquire("b").ref)
    evicted = [lru.acquire(key).evicted for key in "de"]
    assert evicted == ["a", "c"]
    assert lru.keys() == ["d", "b", "e"]


def test_a_held_slot_is_never_given_away():
    lru = SlotLRU(2)
    held = lru.acquire("a").ref
    lru.acquire("b")
    with pytest.raises(CapacityError, match="state slots: 1 slots needed, 0 slots free"):
        lru.acquire("c")
    with pytest.raises(CapacityError, match="held 1 times"):
        lru.drop("a")
    lru.check_ref(held)
    lru.check()


def test_a_stale_or_unheld_reference_is_noticed():
    lru = SlotLRU(1)
    first = lru.acquire("a").ref
    lru.release(first)
    with pytest.raises(PSSError, match="0 holders"):
        lru.release(first)
    second = lru.acquire("b").ref
    for use in (lru.check_ref, lru.release):
        with pytest.raises(PSSError, match="generation 1 was held, it is at 2"):
            use(first)
    lru.check_ref(second)
    with pytest.raises(PSSError, match=r"slots 0\.\.0"):
        lru.check_ref(SlotRef(1, 1))


def test_no_slots_is_a_mistake():
    with pytest.raises(ConfigError, match="num_slots=0"):
        SlotLRU(0)


def test_the_decider_does_not_import_torch():
    code = "import sys, pss_engine.state.lru; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


@pytest.mark.parametrize("damage", ["_slots", "_idle"])
def test_books_that_do_not_balance_are_noticed(damage):
    lru = SlotLRU(2)
    lru.release(lru.acquire("a").ref)
    getattr(lru, damage).clear()
    with pytest.raises(PSSError, match="do not balance"):
        lru.check()


class SlotBooks(RuleBasedStateMachine):
    """Against a model that is a dict of holds and a list of idle keys, oldest first."""

    @initialize(num_slots=st.integers(1, 4))
    def start(self, num_slots):
        self.lru = SlotLRU(num_slots)
        self.holds: dict[str, list[SlotRef]] = {}
        self.idle: list[str] = []
        self.stale: list[SlotRef] = []

    @rule(key=st.sampled_from("abcdef"))
    def acquire(self, key):
        resident = key in self.holds or key in self.idle
        full = len(self.holds) + len(self.idle) == self.lru.num_slots
        if not resident and full and not self.idle:
            with pytest.raises(CapacityError):
                self.lru.acquire(key)
            return
        placement = self.lru.acquire(key)
        assert placement.is_hit == resident
        assert placement.evicted == (self.idle[0] if full and not resident else None)
        if placement.evicted is not None:
            self.idle.pop(0)
        if key in self.idle:
            self.idle.remove(key)
        self.holds.setdefault(key, []).append(placement.ref)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data):
        key = data.draw(st.sampled_from(sorted(self.holds)))
        ref = self.holds[key].pop()
        self.lru.release(ref)
        if not self.holds[key]:
            del self.holds[key]
            self.idle.append(key)
            self.stale.append(ref)

    @rule(key=st.sampled_from("abcdef"))
    def drop(self, key):
        if key in self.holds:
            with pytest.raises(CapacityError):
                self.lru.drop(key)
            return
        slot = self.lru.drop(key)
        assert (slot is not None) == (key in self.idle)
        if key in self.idle:
            self.idle.remove(key)

    @invariant()
    def books_balance(self):
        self.lru.check()
        assert set(self.lru.keys()) - {None} == set(self.holds) | set(self.idle)
        for key, refs in self.holds.items():
            assert self.lru.references(key) == len(refs)
            assert {self.lru.check_ref(ref) for ref in refs} == {key}
            assert len(set(refs)) == 1
        current = {ref for refs in self.holds.values() for ref in refs}
        for ref in self.stale:
            if ref not in current:
                with pytest.raises(PSSError):
                    self.lru.check_ref(ref)


TestSlotBooks = SlotBooks.TestCase
TestSlotBooks.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
