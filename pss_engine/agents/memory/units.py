"""Tier 2: Communication Units by query and step. What is lost is made again; what is damaged is never used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec

from pss_engine.agents.memory.key_value import KeyValueStore, StoreDown
from pss_engine.agents.messages import U, Unit, decode, encode
from pss_engine.errors import ConfigError
from pss_engine.metrics import AgentCounters

P = ParamSpec("P")


class Units:
    """The units of one query.

    A step that another run of the same query has taken already is read, not taken again: a query goes on where it was
    killed. While the query lives, its own units are held here too, so that a storage that fails in the middle costs
    nothing but the counters that say so.

    Args:
        query: the namespace.
        ttl_s: seconds that units live after the query; None: until they are cleared.
    """

    def __init__(self, store: KeyValueStore, query: str, counters: AgentCounters, ttl_s: float | None = None) -> None:
        self._store, self._query, self._counters, self._ttl_s = store, query, counters, ttl_s
        self._held: dict[str, Unit] = {}

    async def take(
        self, step: str, kind: type[U], make: Callable[P, Awaitable[U]], *args: P.args, **kwargs: P.kwargs
    ) -> U:
        """The unit of a step: the stored one, or the one that ``make(...)`` gives, which is stored."""
        held = self._held.get(step)
        unit = held if isinstance(held, kind) else self._read(step, kind)
        if unit is None:
            unit = await make(*args, **kwargs)
            self._write(step, unit)
        self._held[step] = unit
        return unit

    def _read(self, step: str, kind: type[U]) -> U | None:
        try:
            data = self._store.get(self._query, step)
            unit = None if data is None else decode(data, kind)
        except StoreDown:
            self._counters.num_unit_faults += 1
            return None
        except ConfigError:
            self._counters.num_unit_damaged += 1
            return None
        self._counters.num_units_reused += unit is not None
        return unit

    def _write(self, step: str, unit: Unit) -> None:
        try:
            written = self._store.put_once(self._query, step, encode(unit), self._ttl_s)
            self._counters.num_units_written += written
        except StoreDown:
            self._counters.num_unit_faults += 1
