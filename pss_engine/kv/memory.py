"""KV memory as the deciders see it: pools, tables and the ledger moved together. Integers only."""

from __future__ import annotations

from collections.abc import Iterable

from pss_engine.kv.block_pool import BlockPool
from pss_engine.kv.block_table import BlockTable
from pss_engine.kv.geometry import GROUPS, KVGeometry
from pss_engine.kv.ledger import CallUsage, KVLedger


class KVMemory:
    """One block pool per layer group and the ledger over both.

    Shared and session layers have a pool each, so that a prefix can be common to several sessions below the cut and
    private above it.
    """

    def __init__(self, geometry: KVGeometry, num_blocks: int) -> None:
        self.geometry = geometry
        self.pools = {group: BlockPool(group, num_blocks) for group in GROUPS}
        self.ledger = KVLedger(geometry)

    @property
    def max_tokens(self) -> int:
        """Tokens that fit if one sequence had everything."""
        return min(pool.num_blocks for pool in self.pools.values()) * self.geometry.block_size

    def open(self, call_id: str, prompt_tokens: int, agent: str = "", state_bytes: int = 0) -> SequenceKV:
        """Begin to charge a call; it holds nothing yet."""
        self.ledger.open(call_id, prompt_tokens, agent, state_bytes)
        return SequenceKV(self, call_id)

    def check(self, live: Iterable[str]) -> None:
        """Raise unless pools and ledger agree and exactly the calls ``live`` are charged."""
        for pool in self.pools.values():
            pool.check()
        self.ledger.check({group: pool.num_used for group, pool in self.pools.items()}, live)


class SequenceKV:
    """The KV memory of one call."""

    def __init__(self, memory: KVMemory, call_id: str) -> None:
        self._memory, self._call_id = memory, call_id
        block_size = memory.geometry.block_size
        self.tables = {group: BlockTable(pool, block_size) for group, pool in memory.pools.items()}

    def can_hold(self, num_tokens: int) -> bool:
        return all(table.missing(num_tokens) <= table.pool.num_free for table in self.tables.values())

    def hold(self, num_tokens: int) -> None:
        """Have blocks for ``num_tokens``. Raises CapacityError where they are not free; ask :meth:`can_hold` first."""
        for group, table in self.tables.items():
            if added := table.grow(num_tokens):
                self._memory.ledger.allocated(self._call_id, group, added)

    def stored(self, num_tokens: int) -> None:
        self._memory.ledger.stored(self._call_id, num_tokens)

    def preempt(self) -> None:
        """Give all blocks back; the call stays open and will compute them again."""
        self._release()
        self._memory.ledger.preempted(self._call_id)

    def close(self, generated_tokens: int) -> CallUsage:
        """Give all blocks back and end the call."""
        self._release()
        return self._memory.ledger.close(self._call_id, generated_tokens)

    def _release(self) -> None:
        for table in self.tables.values():
            table.release()
