"""The ledger's figures counted again, slowly, from holders and references alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pss_engine.kv.account import CallAccount
from pss_engine.kv.geometry import GROUPS


@dataclass
class Held:
    """What one call holds: blocks and charged bytes by group, and the bytes that it holds alone."""

    blocks: list[int] = field(default_factory=lambda: [0] * len(GROUPS))
    charged: list[int] = field(default_factory=lambda: [0] * len(GROUPS))
    exclusive: int = 0


def recount(
    holders: Sequence[Mapping[int, Sequence[CallAccount]]],
    block_bytes: Sequence[int],
    references: Mapping[str, Sequence[int]],
) -> dict[int, Held]:
    """What each account (by ``id``) must show, by the charging rule.

    Args:
        holders: by group, the calls that hold each block, the oldest first.
        references: by group, the pool's count for every block.

    Raises:
        ValueError: a block has other holders than references.
    """
    found: dict[int, Held] = {}
    for at, group in enumerate(GROUPS):
        known = holders[at]
        wrong = [block for block, count in enumerate(references[group]) if count != len(known.get(block, ()))][:8]
        if wrong:
            charged, held = [len(known.get(b, ())) for b in wrong], [references[group][b] for b in wrong]
            raise ValueError(f"ledger: {group} blocks {wrong} are charged to {charged} calls, {held} hold them")
        for accounts in known.values():
            share, rest = divmod(block_bytes[at], len(accounts))
            for place, account in enumerate(accounts):
                entry = found.setdefault(id(account), Held())
                entry.blocks[at] += 1
                entry.charged[at] += share + (rest if place == 0 else 0)
                entry.exclusive += block_bytes[at] if len(accounts) == 1 else 0
    return found
