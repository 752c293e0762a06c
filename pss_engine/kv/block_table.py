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

    def grow(self, num_tokens: int) -> list[int]:
        """Allocate what is missing for ``num_tokens``; returns the new blocks.

        Raises:
            CapacityError: the pool has too few free blocks; nothing is taken.
        """
        new = self.pool.allocate(self.missing(num_tokens))
        self.blocks += new
        return new

    def trim(self, num_tokens: int) -> list[int]:
        """Give back the blocks beyond those that ``num_tokens`` need; returns them."""
        kept = -(-num_tokens // self.block_size)
        if kept >= len(self.blocks):
            return []
        self.blocks, given = self.blocks[:kept], self.blocks[kept:]
        self.pool.release(given)
        return given

    def adopt(self, blocks: list[int]) -> None:
        """Begin with blocks of a known prefix, shared with whoever holds them."""
        for block in blocks:
            self.pool.share(block)
        self.blocks += blocks

    def release(self) -> None:
        """Give all blocks back."""
        self.trim(0)
