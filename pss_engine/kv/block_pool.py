"""The one owner of KV blocks of a layer group: who may have which block. Integers only."""

from __future__ import annotations

from collections.abc import Iterable

from pss_engine.errors import CapacityError


class BlockPool:
    """``num_blocks`` equal blocks with reference counts; a block is free when nobody refers to it."""

    def __init__(self, name: str, num_blocks: int) -> None:
        self.name, self.num_blocks = name, num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free blocks, each with one reference.

        Raises:
            CapacityError: fewer are free; nothing is taken.
        """
        if count > len(self._free):
            raise CapacityError(f"kv blocks ({self.name})", count, len(self._free), "blocks")
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; those that reach zero are free again."""
        for block in blocks:
            if self._references[block] <= 0:
                raise ValueError(f"block {block} of {self.name} is released but nobody holds it")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check(self) -> None:
        """Raise if the books do not balance: each block is either free once or referred to."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise ValueError(f"pool {self.name}: a block is free twice")
        wrong = [b for b, references in enumerate(self._references) if (references == 0) != (b in free)]
        if wrong:
            raise ValueError(f"pool {self.name}: blocks {wrong[:8]} are both free and in use, or neither")
