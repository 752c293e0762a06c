"""KV memory as the deciders see it: pools, tables and the ledger moved together. Integers only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pss_engine.kv.block_pool import BlockPool
from pss_engine.kv.block_table import BlockTable
from pss_engine.kv.geometry import GROUPS, SESSION, SHARED, KVGeometry
from pss_engine.kv.ledger import CallUsage, KVLedger
from pss_engine.kv.prefix import PrefixKeys


class KVMemory:
    """One block pool per layer group and the ledger over both.

    Shared and session layers have a pool each, so that a prefix can be common to several sessions below the cut and
    private above it.
    """

    def __init__(self, geometry: KVGeometry, num_blocks: int, prefix_caching: bool = True) -> None:
        self.geometry, self.prefix_caching = geometry, prefix_caching
        self.pools = {group: BlockPool(group, num_blocks) for group in GROUPS}
        self.ledger = KVLedger(geometry)

    @property
    def max_tokens(self) -> int:
        """Tokens that fit if one sequence had everything."""
        return min(pool.num_blocks for pool in self.pools.values()) * self.geometry.block_size

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the blocks that live calls hold, each counted once."""
        return sum(pool.num_used * self.geometry.block_bytes(group) for group, pool in self.pools.items())

    @property
    def bytes_cached(self) -> int:
        """Bytes of blocks that nobody holds and whose prefix is known."""
        return sum(pool.num_cached * self.geometry.block_bytes(group) for group, pool in self.pools.items())

    def open(
        self,
        call_id: str,
        prompt_tokens: int,
        *,
        agent: str = "",
        state_bytes: int = 0,
        state_digest: str = "",
        scope: str = "",
    ) -> SequenceKV:
        """Begin to charge a call; it holds nothing yet."""
        self.ledger.open(call_id, prompt_tokens, agent, state_bytes)
        return SequenceKV(self, call_id, PrefixKeys(self.geometry.block_size, state_digest, scope))

    def forget_prefixes(self) -> int:
        """Give up all cached blocks; returns how many there were."""
        return sum(pool.forget() for pool in self.pools.values())

    def check(self, live: Iterable[str]) -> None:
        """Raise unless pools and ledger agree and exactly the calls ``live`` are charged."""
        for pool in self.pools.values():
            pool.check()
        self.ledger.check({group: pool.num_references for group, pool in self.pools.items()}, live)


class SequenceKV:
    """The KV memory of one call."""

    def __init__(self, memory: KVMemory, call_id: str, keys: PrefixKeys) -> None:
        self._memory, self._call_id, self._keys = memory, call_id, keys
        block_size = memory.geometry.block_size
        self.tables = {group: BlockTable(pool, block_size) for group, pool in memory.pools.items()}

    def adopt_prefix(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Hold the cached blocks of the longest known prefix.

        Returns:
            How many leading tokens need no run at all, and how many need none below the cut. The last token is never
            among the first, since its logits are wanted.
        """
        if not self._memory.prefix_caching:
            return 0, 0
        found = {SHARED: self._known(SHARED, token_ids, len(token_ids))}
        # session layers of a token are of use only where the shared layers are known too
        most = min(len(found[SHARED]) * self._memory.geometry.block_size, len(token_ids) - 1)
        found[SESSION] = self._known(SESSION, token_ids, most)
        for group, blocks in found.items():
            self.tables[group].adopt(blocks)
        self._memory.ledger.reused(self._call_id, {group: len(blocks) for group, blocks in found.items()})
        num_session, num_shared = (len(found[g]) * self._memory.geometry.block_size for g in (SESSION, SHARED))
        return num_session, num_shared

    def publish(self, token_ids: Sequence[int], num_stored: int) -> None:
        """Make whole stored blocks findable for sequences that begin with the same tokens."""
        if self._memory.prefix_caching:
            for group, table in self.tables.items():
                for block, key in zip(table.blocks, self._keys.of(group, token_ids, num_stored), strict=False):
                    table.pool.publish(block, key)

    def can_hold(self, num_tokens: int) -> bool:
        return all(table.missing(num_tokens) <= table.pool.num_free for table in self.tables.values())

    def hold(self, num_tokens: int) -> None:
        """Have blocks for ``num_tokens``. Raises CapacityError where they are not free; ask :meth:`can_hold` first."""
        for group, table in self.tables.items():
            if added := table.grow(num_tokens):
                self._memory.ledger.allocated(self._call_id, group, added)

    def stored(self, num_tokens: int) -> None:
        self._memory.ledger.stored(self._call_id, num_tokens)

    def release(self) -> None:
        """Give all blocks back; the call stays open."""
        for table in self.tables.values():
            table.release()
        self._memory.ledger.released(self._call_id)

    def preempt(self) -> None:
        """Give all blocks back and count it; the call will compute them again."""
        self.release()
        self._memory.ledger.preempted(self._call_id)

    def close(self, generated_tokens: int) -> CallUsage:
        """Give all blocks back and end the call."""
        self.release()
        return self._memory.ledger.close(self._call_id, generated_tokens)

    def _known(self, group: str, token_ids: Sequence[int], num_tokens: int) -> list[int]:
        blocks: list[int] = []
        for key in self._keys.of(group, token_ids, num_tokens):
            block = self.tables[group].pool.find(key)
            if block is None:
                break
            blocks.append(block)
        return blocks
