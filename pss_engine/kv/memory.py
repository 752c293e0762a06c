"""KV memory as the deciders see it: pools, tables and the ledger moved together. Integers only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pss_engine.kv.block_pool import BlockPool
from pss_engine.kv.block_table import BlockTable
from pss_engine.kv.geometry import GROUPS, SESSION, SHARED, KVGeometry
from pss_engine.kv.ledger import KVLedger
from pss_engine.kv.prefix import PrefixKeys
from pss_engine.kv.usage import CallUsage


class KVMemory:
    """One block pool per layer group and the ledger over both.

    Shared and session layers have a pool each, so that a prefix can be common to several sessions below the cut and
    private above it.

    Args:
        clock_ns: the ledger's clock, for byte-seconds.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        num_blocks: int,
        prefix_caching: bool = True,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.geometry, self.prefix_caching = geometry, prefix_caching
        self.pools = {group: BlockPool(group, num_blocks) for group in GROUPS}
        self.ledger = KVLedger(geometry, clock_ns)

    @property
    def max_tokens(self) -> int:
        """Tokens that fit if one sequence had everything."""
        return min(pool.num_blocks for pool in self.pools.values()) * self.geometry.block_size

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the blocks that live calls hold, each counted once."""
        return self._bytes(lambda pool: pool.num_used)

    @property
    def bytes_cached(self) -> int:
        """Bytes of blocks that nobody holds and whose prefix is known."""
        return self._bytes(lambda pool: pool.num_cached)

    @property
    def bytes_occupied(self) -> int:
        """Bytes of all blocks with content: in use or cached."""
        return self._bytes(lambda pool: pool.num_occupied)

    @property
    def bytes_total(self) -> int:
        """Bytes of all blocks."""
        return self._bytes(lambda pool: pool.num_blocks)

    def open(
        self,
        call_id: str,
        prompt_tokens: int,
        *,
        query: str = "",
        session: str = "",
        agent: str = "",
        max_new_tokens: int = 0,
        truncated_tokens: int = 0,
        state_bytes: int = 0,
        state_digest: str = "",
        scope: str = "",
    ) -> SequenceKV:
        """Begin to charge a call; it holds nothing yet."""
        self.ledger.open(
            call_id,
            prompt_tokens,
            query=query,
            session=session,
            agent=agent,
            state_bytes=state_bytes,
            max_new_tokens=max_new_tokens,
            truncated_tokens=truncated_tokens,
        )
        return SequenceKV(self, call_id, PrefixKeys(self.geometry.block_size, state_digest, scope))

    def forget_prefixes(self) -> int:
        """Give up all cached blocks; returns how many there were."""
        return sum(pool.forget() for pool in self.pools.values())

    def check(self, live: Iterable[str]) -> None:
        """Raise ValueError unless pools and ledger agree block by block, the charges and the cached blocks are the
        bytes occupied, and exactly the calls ``live`` are charged."""
        for pool in self.pools.values():
            pool.check()
        self.ledger.check({group: pool.references for group, pool in self.pools.items()}, live)
        charged, cached, occupied = self.ledger.charged_bytes, self.bytes_cached, self.bytes_occupied
        if charged + cached != occupied:
            raise ValueError(f"ledger: {charged} bytes are charged, {cached} cached, but {occupied} are occupied")

    def _bytes(self, count: Callable[[BlockPool], int]) -> int:
        return sum(count(pool) * self.geometry.block_bytes(group) for group, pool in self.pools.items())


class SequenceKV:
    """The KV memory of one call."""

    def __init__(self, memory: KVMemory, call_id: str, keys: PrefixKeys) -> None:
        self._memory, self._call_id, self._keys = memory, call_id, keys
        block_size = memory.geometry.block_size
        self.tables = {group: BlockTable(pool, block_size) for group, pool in memory.pools.items()}

    @property
    def blocks(self) -> dict[str, list[int]]:
        """The blocks held, by group."""
        return {group: table.blocks for group, table in self.tables.items()}

    def find_prefix(self, token_ids: Sequence[int]) -> dict[str, list[int]]:
        """The known blocks of the longest prefix, by group; nothing is held.

        Above the cut the last token is never among them, since its logits are wanted.
        """
        if not self._memory.prefix_caching:
            return {group: [] for group in GROUPS}
        shared = self._known(SHARED, token_ids, len(token_ids))
        # session layers of a token are of use only where the shared layers are known too
        most = min(len(shared) * self._memory.geometry.block_size, len(token_ids) - 1)
        return {SHARED: shared, SESSION: self._known(SESSION, token_ids, most)}

    def can_adopt(self, prefix: Mapping[str, Sequence[int]], num_tokens: int) -> bool:
        """Whether ``num_tokens`` fit after this prefix is held."""
        for group, table in self.tables.items():
            pool, blocks = table.pool, prefix[group]
            num_cached = sum(pool.is_cached(block) for block in blocks)
            if table.missing(num_tokens) - len(blocks) > pool.num_free - num_cached:
                return False
        return True

    def adopt(self, prefix: Mapping[str, list[int]]) -> tuple[int, int]:
        """Hold a prefix that was found: leading tokens that need no run at all, and that need none below the cut."""
        for group, blocks in prefix.items():
            self.tables[group].adopt(blocks)
        self._memory.ledger.reused(self._call_id, prefix)
        num_session, num_shared = (len(prefix[g]) * self._memory.geometry.block_size for g in (SESSION, SHARED))
        self._memory.ledger.stored(self._call_id, num_session, num_shared)
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

    def stored(self, num_tokens: int, num_shared: int = 0) -> None:
        """``num_tokens`` tokens are in the cache in all layers; those of a draft that was rejected are not, and blocks
        that only they needed are given back."""
        num_shared = max(num_tokens, num_shared)
        given = {
            SHARED: self.tables[SHARED].trim(num_shared),
            SESSION: self.tables[SESSION].trim(num_tokens),
        }
        self._memory.ledger.stored(self._call_id, num_tokens, num_shared)
        self._memory.ledger.released(self._call_id, given)

    def preempt(self) -> None:
        """Give all blocks back and count it; the call stays open and will compute them again."""
        self._memory.ledger.released(self._call_id, self.blocks)
        self._memory.ledger.preempted(self._call_id)
        self._release()

    def close(self, generated_tokens: int) -> CallUsage:
        """Give all blocks back and end the call."""
        usage = self._memory.ledger.close(self._call_id, generated_tokens, self.blocks)
        self._release()
        return usage

    def _release(self) -> None:
        for table in self.tables.values():
            table.release()

    def _known(self, group: str, token_ids: Sequence[int], num_tokens: int) -> list[int]:
        blocks: list[int] = []
        for key in self._keys.of(group, token_ids, num_tokens):
            block = self.tables[group].pool.find(key)
            if block is None:
                break
            blocks.append(block)
        return blocks
