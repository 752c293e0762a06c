"""The one owner of KV blocks of a layer group: who holds which block, and which free ones still hold a known prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from pss_engine.errors import CapacityError


class BlockPool:
    """``num_blocks`` equal blocks with reference counts.

    A block that nobody refers to is free. If its content was published under a key it stays findable until the block is
    needed again; of such cached blocks the least recently released goes first.

    Attributes:
        num_evictions: cached blocks whose content was given up.
    """

    def __init__(self, name: str, num_blocks: int) -> None:
        self.name, self.num_blocks = name, num_blocks
        self.num_evictions = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, cached ones among them."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_occupied(self) -> int:
        """Blocks with content that somebody holds or that can be found again."""
        return self.num_blocks - len(self._free)

    @property
    def references(self) -> list[int]:
        """Holds on each block; more than one where it is shared."""
        return list(self._references)

    def is_cached(self, block: int) -> bool:
        """Whether nobody holds the block, but its content can be found."""
        return block in self._cached

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, each with one reference and no known content.

        Raises:
            CapacityError: fewer are free; nothing is taken.
        """
        if count > self.num_free:
            raise CapacityError(f"kv blocks ({self.name})", count, self.num_free, "blocks")
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def find(self, key: bytes) -> int | None:
        """The block whose content was published under ``key``."""
        return self._block_of.get(key)

    def share(self, block: int) -> None:
        """One more reference to a block that was found."""
        if self._references[block] == 0:
            del self._cached[block]
        self._references[block] += 1

    def publish(self, block: int, key: bytes) -> None:
        """Make the content of a held block findable; where the key is known already, the older block stays the one."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key], self._key_of[block] = block, key

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; those that reach zero are free again.

        Blocks of a sequence come in order of position; their ends become the first to be evicted.
        """
        for block in reversed(list(blocks)):
            if self._references[block] <= 0:
                raise ValueError(f"block {block} of {self.name} is released but nobody holds it")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._key_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def forget(self) -> int:
        """Give up the content of all cached blocks; returns how many there were."""
        count = len(self._cached)
        self._free += [self._evict() for _ in range(count)]
        return count

    def check(self) -> None:
        """Raise if the books do not balance: each block is free once, cached once, or referred to."""
        idle = {*self._free, *self._cached}
        if len(idle) != len(self._free) + len(self._cached):
            raise ValueError(f"pool {self.name}: a block is free twice")
        wrong = [b for b, references in enumerate(self._references) if (references == 0) != (b in idle)]
        if wrong:
            raise ValueError(f"pool {self.name}: blocks {wrong[:8]} are both free and in use, or neither")
        if {key: block for block, key in self._key_of.items()} != self._block_of or set(self._free) & set(self._key_of):
            raise ValueError(f"pool {self.name}: published keys and blocks do not match")

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._key_of.pop(block)]
        self.num_evictions += 1
        return block
