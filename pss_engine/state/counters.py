"""What the tiers of states did."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class StateCounters:
    """Counts since the start; the ``host_`` and ``h2d_`` ones stay 0 where the host's rows are the slots.

    Attributes:
        hits: acquires answered from a state that was ready already; the first one after a load is not a hit.
        misses: loads begun for an acquire. Each becomes a load, a failed load, or is under way.
        waits: acquires answered "not ready yet, ask again".
        loads, failed_loads: loads by their end.
        loaded_bytes: factors of the loaded states.
        load_seconds: time of the loader, from the beginning of a load to its end.
        evictions: states that left the slots, for another one or on request.
        host_hits, host_misses: loads that found their state in host memory, or had to read it.
        host_evictions: states that left host memory.
        h2d_bytes, h2d_seconds: rows copied from host memory to the device.
    """

    hits: int = 0
    misses: int = 0
    waits: int = 0
    loads: int = 0
    failed_loads: int = 0
    loaded_bytes: int = 0
    load_seconds: float = 0.0
    evictions: int = 0
    host_hits: int = 0
    host_misses: int = 0
    host_evictions: int = 0
    h2d_bytes: int = 0
    h2d_seconds: float = 0.0

    def to_dict(self) -> dict[str, float]:
        return asdict(self)
