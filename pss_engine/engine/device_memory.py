"""Where memory went: weights, states, KV, activations, and the rest by name, so that the parts add up to the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pss_engine.kv import KVCache
from pss_engine.process_memory import file_ranges, machine, process, reset_peak, resident_bytes

if TYPE_CHECKING:
    from pss_engine.models import LoadedModel
    from pss_engine.state import StateSlots


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one engine's process, in bytes. ``sum(parts) == peak``.

    Attributes:
        peak: largest since the engine was made; on the CPU the resident set of the process, on CUDA what its allocator
            had reserved (``peak_of`` says which).
        parts: ``weights``, ``states``, ``kv`` and ``cut_hidden`` as they are resident now; ``activations``: on the CPU
            by how much the peak was above what is resident now, on CUDA by how much the allocator's peak was above
            these tensors; ``files`` (CPU): mapped libraries, without weights read in place; and the remainder,
            ``other``: on the CPU interpreter, tokenizer, states given in memory, and freed memory that malloc keeps;
            on CUDA what was reserved and not allocated.
        kv_reserved: what the KV tensors may grow to; on the CPU pages that were never written are not resident.
        rss, pss: of the process now; ``pss`` counts pages shared with other processes by their share.
        unified: the device takes its memory from the machine's (Jetson): judge it by ``machine_available``.
        machine_available: before the engine's memory was made (``_before``) and now.
        device_used: CUDA: used on the device by all processes, contexts included; 0 on the CPU.
    """

    device: str
    peak_of: str
    peak: int
    parts: dict[str, int]
    kv_reserved: int
    rss: int
    pss: int
    unified: bool
    machine_total: int
    machine_available: int
    machine_available_before: int
    device_used: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class MemoryMeter:
    """Reads the memory of an engine; the peak begins when the meter is made."""

    def __init__(self, model: LoadedModel, cache: KVCache, slots: StateSlots) -> None:
        self._device, self._model, self._cache, self._slots = model.device, model, cache, slots
        self._available = machine()["available"]
        self._peak_of = "rss since the engine was made" if reset_peak() else "rss of the process"
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._peak_of = "reserved by the CUDA allocator since the engine was made"

    def read(self) -> DeviceMemory:
        of_process, of_machine = process(), machine()
        parts = {
            "weights": self._bytes(tensors_of([self._model.transformer])),
            "states": self._bytes(tensors_of([self._slots])),
            "kv": self._bytes([*self._cache.k, *self._cache.v]),
            "cut_hidden": self._bytes([self._cache.hidden]),
        }
        held, unified, used = sum(parts.values()), False, 0
        if self._device.type == "cuda":
            unified = self._slots.unified
            free, total = torch.cuda.mem_get_info(self._device)
            used = total - free
            peak = torch.cuda.max_memory_reserved(self._device)
            parts["activations"] = max(0, torch.cuda.max_memory_allocated(self._device) - held)
        else:
            peak = of_process["peak"]
            parts["activations"] = peak - of_process["rss"]
            parts["files"] = of_process["files"] - self._read_in_place()
        parts["other"] = peak - sum(parts.values())
        return DeviceMemory(
            device=str(self._device),
            peak_of=self._peak_of,
            peak=peak,
            parts=parts,
            kv_reserved=sum(tensor.nbytes for tensor in [*self._cache.k, *self._cache.v]),
            rss=of_process["rss"],
            pss=of_process["pss"],
            unified=unified,
            machine_total=of_machine["total"],
            machine_available=of_machine["available"],
            machine_available_before=self._available,
            device_used=used,
        )

    def _bytes(self, tensors: Iterable[Tensor]) -> int:
        """Bytes of the tensors' storages on the engine's device, each once; on the CPU those that are resident."""
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in tensors
            if tensor.device.type == self._device.type
        }
        if self._device.type == "cpu":
            return sum(resident_bytes(at, num_bytes) for at, num_bytes in storages.items())
        return sum(storages.values())

    def _read_in_place(self) -> int:
        """Resident bytes of weights that lie in mapped files."""
        ranges = file_ranges()
        mapped = [
            tensor
            for tensor in tensors_of([self._model.transformer])
            if any(start <= tensor.untyped_storage().data_ptr() < end for start, end in ranges)
        ]
        return self._bytes(mapped)


def tensors_of(roots: Iterable[object]) -> Iterator[Tensor]:
    """All tensors that our own objects refer to, through attributes, lists and dicts."""
    waiting, seen = list(roots), set[int]()
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, dict):
            waiting += list(item.values())
        elif isinstance(item, (list, tuple)):
            waiting += item
        elif is_dataclass(item) or type(item).__module__.startswith("pss_engine."):
            waiting += [getattr(item, name) for name in _names(item)]


def _names(item: object) -> list[str]:
    slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    return [name for name in (*getattr(item, "__dict__", ()), *slots) if hasattr(item, name)]
