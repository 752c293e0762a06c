"""Which state has which slot: reference counts, generations, LRU eviction. Moves integers, never tensors."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pss_engine.errors import CapacityError, ConfigError, PSSError


@dataclass(frozen=True)
class SlotRef:
    """A hold on a slot: valid while the slot's generation is this one.

    Attributes:
        slot: index of the slot.
        generation: how often the slot had been filled, this time included.
    """

    slot: int
    generation: int


@dataclass(frozen=True)
class Placement:
    """What ``SlotLRU.acquire`` decided.

    Attributes:
        ref: the slot held for the caller.
        is_hit: the key was resident; otherwise the caller has to fill the slot.
        evicted: the key that lost the slot, None if the slot was free or it was a hit.
    """

    ref: SlotRef
    is_hit: bool
    evicted: str | None = None


class SlotLRU:
    """Assigns ``num_slots`` slots to keys.

    A slot with references is never evicted; among the others the one that became idle first goes first. One owner, no
    locking: the engine's loop is the only caller.

    Attributes:
        hits, misses, evictions: counts since the start; ``drop`` of an idle key counts as an eviction.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ConfigError(f"num_slots={num_slots}: at least 1 slot is needed")
        self.num_slots = num_slots
        self.hits = self.misses = self.evictions = 0
        self._keys: list[str | None] = [None] * num_slots
        self._references = [0] * num_slots
        self._generations = [0] * num_slots
        self._slots: dict[str, int] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()

    def acquire(self, key: str) -> Placement:
        """Hold the key's slot, giving it one if it has none; CapacityError if every slot is held."""
        slot = self._slots.get(key)
        if slot is not None:
            self.hits += 1
            self._idle.pop(key, None)
            self._references[slot] += 1
            return Placement(SlotRef(slot, self._generations[slot]), is_hit=True)
        evicted = None
        if None in self._keys:
            slot = self._keys.index(None)
        elif self._idle:
            evicted = next(iter(self._idle))
            slot = self._slots[evicted]
            self.drop(evicted)
        else:
            raise CapacityError("state slots", 1, 0, "slots")
        self.misses += 1
        self._keys[slot], self._slots[key] = key, slot
        self._references[slot] = 1
        self._generations[slot] += 1
        return Placement(SlotRef(slot, self._generations[slot]), is_hit=False, evicted=evicted)

    def release(self, ref: SlotRef) -> None:
        """Give one hold back; PSSError if the reference is stale or nobody holds the slot."""
        key = self.check_ref(ref)
        self._references[ref.slot] -= 1
        if not self._references[ref.slot]:
            self._idle[key] = None

    def check_ref(self, ref: SlotRef) -> str:
        """The key in a held slot; PSSError if the slot was filled anew or emptied since, or is not held."""
        if not 0 <= ref.slot < self.num_slots:
            raise PSSError(f"state slot {ref.slot}: there are slots 0..{self.num_slots - 1}")
        key = self._keys[ref.slot]
        if key is None or ref.generation != self._generations[ref.slot]:
            raise PSSError(
                f"state slot {ref.slot}: generation {ref.generation} was held, it is at {self._generations[ref.slot]}"
            )
        if not self._references[ref.slot]:
            raise PSSError(f"state slot {ref.slot}: generation {ref.generation} has 0 holders, at least 1 is needed")
        return key

    def drop(self, key: str) -> int | None:
        """Empty an idle key's slot and return it, None if the key has none; CapacityError while the slot is held."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        if self._references[slot]:
            raise CapacityError(
                f"state slot {slot} is held {self._references[slot]} times and cannot be emptied", 1, 0, "slots"
            )
        self.evictions += 1
        del self._slots[key], self._idle[key]
        self._keys[slot] = None
        return slot

    def slot_of(self, key: str) -> int | None:
        """The key's slot, None if it is not resident."""
        return self._slots.get(key)

    def references(self, key: str) -> int:
        """How many holds there are on a key."""
        slot = self._slots.get(key)
        return 0 if slot is None else self._references[slot]

    def keys(self) -> list[str | None]:
        """The key in each slot."""
        return list(self._keys)

    def check(self) -> None:
        """Raise PSSError unless the books balance."""
        resident = {key: slot for slot, key in enumerate(self._keys) if key is not None}
        idle = {key for key, slot in resident.items() if not self._references[slot]}
        empty_held = [slot for slot, key in enumerate(self._keys) if key is None and self._references[slot]]
        if resident != self._slots or idle != set(self._idle) or empty_held or min(self._references) < 0:
            raise PSSError(
                f"state slots do not balance: keys {self._keys}, holds {self._references}, idle {list(self._idle)}"
            )
        if self.misses - self.evictions != len(resident):
            raise PSSError(
                f"state slots do not balance: {self.misses} fills, {self.evictions} evictions, {len(resident)} resident"
            )
