"""Names of cached content: chained hashes of whole blocks of tokens, one chain for each side of the cut."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from pss_engine.kv.geometry import SESSION, SHARED

KEY_BYTES = 16


class PrefixKeys:
    """Keys of a sequence's blocks, by layer group.

    ``key[i] = H(key[i - 1], tokens of block i)``. The chain of the shared layers begins with the scope alone: below the
    cut the tokens decide everything. The chain of the session layers begins with the scope and the digest of the state
    (empty for the base model), so that no sequence finds keys and values of another state.

    Args:
        scope: sequences of different scopes share nothing (a tenant's name, where timing must not tell).
    """

    def __init__(self, block_size: int, state_digest: str, scope: str) -> None:
        self._block_size = block_size
        roots = {SHARED: repr(scope), SESSION: repr((scope, state_digest))}
        self._roots = {group: blake2b(root.encode(), digest_size=KEY_BYTES).digest() for group, root in roots.items()}
        self._keys: dict[str, list[bytes]] = {SHARED: [], SESSION: []}

    def of(self, group: str, token_ids: Sequence[int], num_tokens: int) -> list[bytes]:
        """Keys of the whole blocks in the first ``num_tokens`` tokens; tokens only ever grow."""
        keys = self._keys[group]
        for index in range(len(keys), num_tokens // self._block_size):
            tokens = token_ids[index * self._block_size : (index + 1) * self._block_size]
            parent = keys[-1] if keys else self._roots[group]
            content = b"".join(token.to_bytes(4, "little") for token in tokens)
            keys.append(blake2b(parent + content, digest_size=KEY_BYTES).digest())
        return keys[: num_tokens // self._block_size]
