"""The blocks of one sequence in one layer group, in order of position."""

from __future__ import annotations

from pss_engine.kv.block_pool import BlockPool


class BlockTable:
    """Grows by whole blocks as tokens come; gives everything back at once."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool, self.block_size = pool, block_size
        self.blocks: list[int] = []

    def missing(self, num_tokens: int) -> int:
        """Blocks still to be allocated before ``num_tokens`` tokens fit."""
        return max(0, -(-num_tokens // self.block_size) - len(self.blocks))

    def grow(self, num_tokens: int) -> int:
        """Allocate what is missing for ``num_tokens``; returns how many blocks are new.

        Raises:
            CapacityError: the pool has too few free blocks; nothing is taken.
        """
        missing = self.missing(num_tokens)
        self.blocks += self.pool.allocate(missing)
        return missing

    def adopt(self, blocks: list[int]) -> None:
        """Begin with blocks of a known prefix, shared with whoever holds them."""
        for block in blocks:
            self.pool.share(block)
        self.blocks += blocks

    def release(self) -> int:
        """Give all blocks back; returns how many they were."""
        blocks, self.blocks = self.blocks, []
        self.pool.release(blocks)
        return len(blocks)
