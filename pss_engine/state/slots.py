"""StateSlots: the states that are on the device, ready for the LoRA kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pss_engine.errors import ConfigError, PSSError
from pss_engine.state.lru import SlotLRU, SlotRef
from pss_engine.state.session_state import SessionState
from pss_engine.state.shape import StateShape, TargetKey
from pss_engine.state.verify import check_topology

_ALIGN_ELEMENTS = 64


@dataclass(frozen=True, eq=False)
class TargetSlots:
    """All slots of one adapted linear layer, as ``lora_bgmv`` takes them; views, never copied.

    Attributes:
        lora_a: ``[S, R, H_in]``, inner two dims contiguous.
        lora_b: ``[S, H_out, R]``, inner two dims contiguous.
        scaling: ``[S]`` float32.
        ranks: ``[S]`` int32; 0 where the slot's state does not touch this layer. Beyond its rank a slot is zero.
    """

    lora_a: torch.Tensor
    lora_b: torch.Tensor
    scaling: torch.Tensor
    ranks: torch.Tensor


class StateSlots:
    """Device memory for ``num_slots`` states; the only owner of it.

    One buffer ``[S, numel]``: a slot is one row, filled by one copy. A state is found by its digest, held while a
    request uses it, and evicted (least recently used first) only when nobody holds it.

    Args:
        targets: module name -> (in_features, out_features).
        layers: the session layers, ``range(first_session_layer, num_layers)``.
        num_slots: S.
        max_rank: R; smaller ranks are padded with zeros.
        dtype: of the factors on the device; a state in another dtype is rounded to it.
        device: where.

    Attributes:
        loads, loaded_bytes: states copied to the device, and the bytes of that.
    """

    def __init__(
        self,
        targets: Mapping[str, tuple[int, int]],
        layers: range,
        num_slots: int,
        max_rank: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if max_rank < 1 or layers.step != 1 or not layers:
            raise ConfigError(
                f"state slots: max_rank={max_rank} and layers={layers}: at least 1 of each is needed, without gaps"
            )
        self.shape = StateShape(layers.stop, dict(targets), layers.start)
        self.num_slots, self.max_rank = num_slots, max_rank
        self.loads = self.loaded_bytes = 0
        self._lru = SlotLRU(num_slots)
        self._order: dict[TargetKey, int] = {
            key: index for index, key in enumerate((layer, module) for layer in layers for module in targets)
        }
        offsets, numel = self._layout()
        self._buffer = torch.zeros(num_slots, numel, dtype=dtype, device=device)
        on_host = self._buffer.device.type == "cpu"
        # Rows are put together on the host and cross to the device in one copy.
        self._staging = (
            None if on_host else torch.zeros(numel, dtype=dtype, pin_memory=self._buffer.device.type == "cuda")
        )
        self._scaling = torch.zeros(len(self._order), num_slots, dtype=torch.float32, device=device)
        self._ranks = torch.zeros(len(self._order), num_slots, dtype=torch.int32, device=device)
        self._touched: list[tuple[TargetKey, ...]] = [()] * num_slots
        self._num_touching = dict.fromkeys(self._order, 0)
        self._offsets = offsets
        self._views = {
            key: TargetSlots(*self._split(self._buffer, key), self._scaling[index], self._ranks[index])
            for key, index in self._order.items()
        }

    def prepare(self, state: SessionState) -> None:
        """Raise StateFormatError unless the state fits: layers, modules, shapes and rank. Writes nothing."""
        check_topology(state, self.shape, self.max_rank)

    def acquire(self, state: SessionState) -> SlotRef:
        """Hold a slot with this state in it, loading it if it is not resident.

        Raises:
            StateFormatError: the state does not fit.
            CapacityError: every slot is held.
        """
        digest = state.digest
        if self._lru.slot_of(digest) is None:
            self.prepare(state)
        placement = self._lru.acquire(digest)
        if not placement.is_hit:
            try:
                self._load(placement.ref.slot, state)
            except BaseException:
                self._lru.release(placement.ref)
                self.evict(digest)
                raise
        return placement.ref

    def release(self, ref: SlotRef) -> None:
        """Give a hold back; the state stays until its slot is needed. PSSError if the hold is stale."""
        self._lru.release(ref)

    def check_ref(self, ref: SlotRef) -> None:
        """Raise PSSError if the slot no longer has what was acquired; every step checks its slots so."""
        self._lru.check_ref(ref)

    def resident(self, digest: str) -> bool:
        """Whether a state is on the device."""
        return self._lru.slot_of(digest) is not None

    def evict(self, digest: str) -> None:
        """Remove a state from the device and zero its slot; CapacityError while it is held, nothing if not resident."""
        slot = self._lru.drop(digest)
        if slot is not None:
            self._forget(slot)
            self._buffer[slot].zero_()

    def view(self, layer: int, module: str) -> TargetSlots | None:
        """The slots of one linear layer, or None if no resident state touches it and nothing needs to be launched."""
        return self._views[layer, module] if self._num_touching.get((layer, module)) else None

    @property
    def num_bytes(self) -> int:
        """Device bytes of the factors."""
        return self._buffer.numel() * self._buffer.element_size()

    @property
    def hits(self) -> int:
        """Acquires that found their state resident."""
        return self._lru.hits

    @property
    def misses(self) -> int:
        """Acquires that had to load."""
        return self._lru.misses

    @property
    def evictions(self) -> int:
        """States that left the device."""
        return self._lru.evictions

    def check(self) -> None:
        """Raise PSSError unless the books balance: slots, and which layers their states touch."""
        self._lru.check()
        ranks = self._ranks.cpu()
        for key, index in self._order.items():
            touching = [slot for slot in range(self.num_slots) if key in self._touched[slot]]
            if len(touching) != self._num_touching[key] or touching != ranks[index].nonzero().flatten().tolist():
                raise PSSError(
                    f"state slots do not balance: layer {key[0]} {key[1]} is touched by slots {touching}, "
                    f"counted {self._num_touching[key]}, ranks {ranks[index].tolist()}"
                )
        for slot, resident in enumerate(self._lru.keys()):
            if (resident is None) == bool(self._touched[slot]):
                raise PSSError(
                    f"state slots do not balance: slot {slot} has {resident} and {len(self._touched[slot])} modules"
                )

    def _layout(self) -> tuple[dict[TargetKey, tuple[int, int]], int]:
        """Offsets of A and B of every target in a row, aligned for vector loads, and the length of a row."""
        offsets, at = {}, 0
        for key in self._order:
            starts = []
            for features in self.shape.targets[key[1]]:
                starts.append(at)
                at += -(-self.max_rank * features // _ALIGN_ELEMENTS) * _ALIGN_ELEMENTS
            offsets[key] = (starts[0], starts[1])
        return offsets, at

    def _split(self, rows: torch.Tensor, key: TargetKey) -> tuple[torch.Tensor, torch.Tensor]:
        """A ``[S, R, H_in]`` and B ``[S, H_out, R]`` of one target in rows ``[S, numel]``."""
        (a_at, b_at), (in_features, out_features) = self._offsets[key], self.shape.targets[key[1]]
        a = rows[:, a_at : a_at + self.max_rank * in_features]
        b = rows[:, b_at : b_at + self.max_rank * out_features]
        return a.view(-1, self.max_rank, in_features), b.view(-1, out_features, self.max_rank)

    def _load(self, slot: int, state: SessionState) -> None:
        self._forget(slot)
        row = self._buffer[slot] if self._staging is None else self._staging
        row.zero_()
        scaling = torch.zeros(len(self._order))
        ranks = torch.zeros(len(self._order), dtype=torch.int32)
        for key, pair in state.factors.items():
            a, b = self._split(row[None], key)
            a[0, : pair.rank].copy_(pair.a)
            b[0, :, : pair.rank].copy_(pair.b)
            scaling[self._order[key]], ranks[self._order[key]] = pair.scaling, pair.rank
        if self._staging is not None:
            self._buffer[slot].copy_(self._staging)
        self._scaling[:, slot].copy_(scaling)
        self._ranks[:, slot].copy_(ranks)
        self._touched[slot] = tuple(state.factors)
        for key in state.factors:
            self._num_touching[key] += 1
        self.loads += 1
        self.loaded_bytes += self._buffer[slot].numel() * self._buffer.element_size()

    def _forget(self, slot: int) -> None:
        """Take a slot's state out of the books; its ranks become 0, so that no kernel reads what is left."""
        for key in self._touched[slot]:
            self._num_touching[key] -= 1
        self._touched[slot] = ()
        self._ranks[:, slot].zero_()
        self._scaling[:, slot].zero_()
