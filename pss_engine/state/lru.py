"""Which state has which row of a memory: holds, generations, LRU eviction. Moves integers, never tensors."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from pss_engine.errors import CapacityError, ConfigError, PSSError


@dataclass(frozen=True)
class SlotRef:
    """A slot as it was filled at one time: valid while the slot's generation is this one.

    Attributes:
        slot: index of the slot.
        generation: how often the slot had been given to a state, this time included.
    """

    slot: int
    generation: int


@dataclass(frozen=True)
class Placement:
    """What ``SlotLRU.reserve`` decided.

    Attributes:
        ref: the slot that the caller has to fill and then publish, or to free.
        evicted: the key that lost the slot, None if it was free.
    """

    ref: SlotRef
    evicted: str | None


class SlotLRU:
    """Assigns ``num_slots`` slots to keys. No locking: the owner of the memory calls it under its lock.

    A slot is free, being filled, idle or held. ``reserve`` takes a free slot, else the one that has been idle longest;
    one that is being filled or held is never taken. Only a filled slot can be held.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ConfigError(f"num_slots={num_slots}: at least 1 slot is needed")
        self.num_slots = num_slots
        self._keys: list[str | None] = [None] * num_slots
        self._holds = [0] * num_slots
        self._generations = [0] * num_slots
        self._slots: dict[str, int] = {}
        self._free = list(range(num_slots))
        self._filling: set[int] = set()
        self._idle: OrderedDict[str, None] = OrderedDict()

    def reserve(self, key: str) -> Placement | None:
        """A slot to fill for a key that has none; None if it has one, or if every slot is being filled or held."""
        if key in self._slots or not (self._free or self._idle):
            return None
        evicted = None
        if self._free:
            slot = heapq.heappop(self._free)
        else:
            evicted, _ = self._idle.popitem(last=False)
            slot = self._slots.pop(evicted)
        self._keys[slot], self._slots[key] = key, slot
        self._generations[slot] += 1
        self._filling.add(slot)
        return Placement(SlotRef(slot, self._generations[slot]), evicted)

    def publish(self, slot: int) -> None:
        """A reserved slot is filled: its key can be held from now on."""
        key = self._keys[slot]
        if slot not in self._filling or key is None:
            raise PSSError(f"state slot {slot}: is not being filled and cannot be published")
        self._filling.remove(slot)
        self._idle[key] = None

    def retire(self, key: str) -> int | None:
        """Forget an idle key; its slot goes to nobody until ``free``. None if the key has no slot.

        Raises:
            CapacityError: the slot is held or being filled.
        """
        slot = self._slots.get(key)
        if slot is None:
            return None
        if key not in self._idle:
            why = "being filled" if slot in self._filling else f"held {self._holds[slot]} times"
            raise CapacityError(f"state slot {slot} is {why} and cannot be emptied", 1, 0, "slots")
        del self._idle[key], self._slots[key]
        self._keys[slot] = None
        self._filling.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """A reserved slot was not filled after all, or a retired one is empty: it can be taken again."""
        if slot not in self._filling:
            raise PSSError(f"state slot {slot}: is not being filled and cannot be freed")
        self._filling.remove(slot)
        key = self._keys[slot]
        if key is not None:
            del self._slots[key]
            self._keys[slot] = None
        heapq.heappush(self._free, slot)

    def hold(self, key: str) -> SlotRef | None:
        """Hold the key's slot; None unless it is filled."""
        slot = self._slots.get(key)
        if slot is None or slot in self._filling:
            return None
        self._idle.pop(key, None)
        self._holds[slot] += 1
        return SlotRef(slot, self._generations[slot])

    def release(self, ref: SlotRef) -> None:
        """Give one hold back; PSSError if the reference is stale or nobody holds the slot."""
        key = self.check_ref(ref)
        self._holds[ref.slot] -= 1
        if not self._holds[ref.slot]:
            self._idle[key] = None

    def check_ref(self, ref: SlotRef) -> str:
        """The key in a held slot; PSSError if the slot was given away or emptied since, or is not held."""
        if not 0 <= ref.slot < self.num_slots:
            raise PSSError(f"state slot {ref.slot}: there are slots 0..{self.num_slots - 1}")
        key, generation = self._keys[ref.slot], self._generations[ref.slot]
        if ref.generation != generation:
            raise PSSError(f"state slot {ref.slot}: generation {ref.generation} was held, it is at {generation}")
        if key is None or not self._holds[ref.slot]:
            raise PSSError(f"state slot {ref.slot}: generation {ref.generation} has 0 holders, at least 1 is needed")
        return key

    def is_filled(self, key: str) -> bool:
        """Whether the key can be held."""
        slot = self._slots.get(key)
        return slot is not None and slot not in self._filling

    def filled(self) -> dict[int, str]:
        """slot -> key of the filled slots."""
        return {slot: key for key, slot in self._slots.items() if slot not in self._filling}

    def filling(self) -> list[int]:
        """The slots that are being filled or emptied."""
        return sorted(self._filling)

    def check(self) -> None:
        """Raise PSSError unless the books balance: every slot is in exactly one of the four conditions."""
        held = {slot for slot, holds in enumerate(self._holds) if holds}
        idle = {self._slots.get(key, -1) for key in self._idle}
        given = {key: slot for slot, key in enumerate(self._keys) if key is not None}
        everywhere = sorted([*self._free, *self._filling, *held, *idle])
        if everywhere != list(range(self.num_slots)) or given != self._slots or set(given.values()) & set(self._free):
            raise PSSError(
                f"state slots do not balance: keys {self._keys}, holds {self._holds}, idle {list(self._idle)}, "
                f"being filled {sorted(self._filling)}, free {sorted(self._free)}"
            )
