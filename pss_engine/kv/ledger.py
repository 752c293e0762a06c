"""The single owner of truth about KV bytes: every block change is charged to a call. Integers only.

The charging rule
-----------------
1. A block belongs to the calls that hold it. With n holders each is charged ``block_bytes // n``; the
   ``block_bytes % n`` bytes that remain are charged to the holder that has held it longest.
2. When a call comes or goes, the charges of the others change at once. The last holder pays for the whole block.
3. A block that nobody holds but whose prefix is known is charged to the cache, to no call.
4. So after every change ``charges = bytes of held blocks`` and ``charges + cached = bytes of all blocks with content``,
   exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pss_engine.kv.account import CallAccount, QueryAccount, group_usages
from pss_engine.kv.geometry import GROUPS, SESSION, SHARED, KVGeometry
from pss_engine.kv.proof import Held, recount
from pss_engine.kv.totals import Totals
from pss_engine.kv.usage import CallUsage

OWNERS = ("call_id", "query", "session", "agent")


class KVLedger:
    """Charges of the live calls, by block and holder; usage of each call when it ends.

    Args:
        clock_ns: time in nanoseconds, for byte-seconds.
    """

    def __init__(self, geometry: KVGeometry, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.geometry, self.totals = geometry, Totals()
        self._clock_ns = clock_ns
        self._live: dict[str, CallAccount] = {}
        self._queries: dict[str, QueryAccount] = {}
        self._holders: tuple[dict[int, list[CallAccount]], ...] = ({}, {})
        self._block_bytes = [geometry.block_bytes(group) for group in GROUPS]

    @property
    def num_live_calls(self) -> int:
        return len(self._live)

    @property
    def charged_bytes(self) -> int:
        """Sum of the charges of all live calls."""
        return sum(sum(account.charged) for account in self._live.values())

    def charges(self, owner: str) -> dict[str, int]:
        """Charged bytes by ``call_id``, ``query``, ``session``, ``agent``, or layer ``group``."""
        found: dict[str, int] = {}
        for account in list(self._live.values()):
            if owner == "group":
                for group, charged in zip(GROUPS, account.charged, strict=True):
                    found[group] = found.get(group, 0) + charged
            else:
                name = getattr(account.usage, owner)
                found[name] = found.get(name, 0) + sum(account.charged)
        return found

    def owners(self) -> list[tuple[CallUsage, int]]:
        """Each live call, by its usage so far, and what it is charged now."""
        return [(account.usage, sum(account.charged)) for account in self._live.values()]

    def planned(self, query: str) -> int:
        """Bytes that the live calls of a query may come to hold together, shared blocks counted for each."""
        return self._queries[query].planned if query in self._queries else 0

    # the life of a call

    def open(
        self,
        call_id: str,
        prompt_tokens: int,
        *,
        query: str = "",
        session: str = "",
        agent: str = "",
        state_bytes: int = 0,
        max_new_tokens: int = 0,
        truncated_tokens: int = 0,
    ) -> None:
        if call_id in self._live:
            raise ValueError(f"call {call_id!r} is already in the ledger")
        geometry = self.geometry
        usage = CallUsage(
            call_id,
            agent,
            query,
            session,
            prompt_tokens=prompt_tokens,
            max_new_tokens=max_new_tokens,
            truncated_tokens=truncated_tokens,
            kv_dtype=geometry.dtype,
            kv_block_tokens=geometry.block_size,
            kv_bytes_per_token=geometry.bytes_per_token,
            kv_declared_bytes=(prompt_tokens + max_new_tokens) * geometry.bytes_per_token,
            recurrent_state_bytes=geometry.recurrent_bytes,
            state_bytes=state_bytes,
            groups=group_usages(geometry),
        )
        of_query = self._queries.setdefault(query, QueryAccount()) if query else None
        # the last sampled token is never stored
        planned = geometry.held_bytes(prompt_tokens + max(0, max_new_tokens - 1))
        self._live[call_id] = CallAccount(usage, of_query, planned, self._clock_ns())

    def allocated(self, call_id: str, group: str, blocks: Sequence[int]) -> None:
        """New blocks of a layer group now belong to the call."""
        account, usage = self._live[call_id], self._live[call_id].usage
        usage.kv_allocated_bytes += len(blocks) * self.geometry.block_bytes(group)
        usage.groups[group].allocated_blocks += len(blocks)
        self._take(account, GROUPS.index(group), blocks)

    def reused(self, call_id: str, blocks: Mapping[str, Sequence[int]]) -> None:
        """Blocks with a known prefix, by group, are held by the call too: their tokens need no run."""
        account, usage = self._live[call_id], self._live[call_id].usage
        usage.kv_reused_blocks = sum(map(len, blocks.values()))
        block_size = self.geometry.block_size
        usage.cached_tokens, usage.cached_shared_tokens = (len(blocks[g]) * block_size for g in (SESSION, SHARED))
        for at, group in enumerate(GROUPS):
            usage.groups[group].reused_blocks = len(blocks[group])
            self._take(account, at, blocks[group])

    def stored(self, call_id: str, num_tokens: int, num_shared: int) -> None:
        """The call's cache holds ``num_tokens`` tokens in all layers, ``num_shared`` in the shared ones at least."""
        self._live[call_id].store(num_tokens, num_shared, self.geometry)

    def released(self, call_id: str, blocks: Mapping[str, Sequence[int]]) -> None:
        """The call gave these blocks back; it is still open."""
        for at, group in enumerate(GROUPS):
            if blocks.get(group):
                self._drop(self._live[call_id], at, blocks[group])

    def preempted(self, call_id: str) -> None:
        """The call holds nothing any more and will compute it again."""
        account = self._live[call_id]
        account.usage.num_preemptions += 1
        account.store(0, 0, self.geometry)

    def close(self, call_id: str, generated_tokens: int, blocks: Mapping[str, Sequence[int]]) -> CallUsage:
        """End a call, which still holds ``blocks``; they are given back."""
        account = self._live[call_id]
        account.usage.generated_tokens = generated_tokens
        account.settle(self.geometry, self._clock_ns())
        account.store(0, 0, self.geometry)
        self.released(call_id, blocks)
        usage = self._live.pop(call_id).usage
        if account.query is not None and account.query.num_calls == 0:
            del self._queries[usage.query]
        self.totals.add(usage)
        return usage

    # proof

    def check(self, references: Mapping[str, Sequence[int]], live: Iterable[str]) -> None:
        """Raise ValueError unless holders, charges, pools and engine agree, block by block.

        Args:
            references: references of every block by group, from the pools.
            live: ids of the calls that the engine knows.
        """
        expected = recount(self._holders, self._block_bytes, references)
        for call_id, account in self._live.items():
            found = Held(account.blocks, account.charged, account.exclusive)
            if found != (right := expected.pop(id(account), Held())):
                raise ValueError(f"ledger: call {call_id!r} is charged {found}, its blocks say {right}")
        if expected:
            raise ValueError(f"ledger: {len(expected)} calls hold blocks after their end")
        unknown = set(self._live) ^ set(live)
        if unknown:
            raise ValueError(f"ledger: calls {sorted(unknown)[:8]} are live on one side only")

    def dump(self) -> dict[str, Any]:
        """All that the ledger knows, for whoever looks into an alarm."""
        return {
            "charged_bytes": self.charged_bytes,
            "calls": [
                {**account.usage.to_dict(), "blocks": account.blocks, "charged": account.charged}
                for account in self._live.values()
            ],
            "holders": {
                group: {str(block): [account.usage.call_id for account in accounts] for block, accounts in held.items()}
                for group, held in zip(GROUPS, self._holders, strict=True)
            },
        }

    def _take(self, account: CallAccount, at: int, blocks: Sequence[int]) -> None:
        holders, size, now, alone = self._holders[at], self._block_bytes[at], self._clock_ns(), 0
        for block in blocks:
            others = holders.setdefault(block, [])
            if not others:
                alone += size
            else:
                self._split(others, at, len(others) + 1, now)
                if len(others) == 1:
                    others[0].own(-size)
                account.charge(at, size // (len(others) + 1), now)
            others.append(account)
        if alone:
            account.charge(at, alone, now)
            account.own(alone)
        account.hold(at, len(blocks), self.geometry)

    def _drop(self, account: CallAccount, at: int, blocks: Sequence[int]) -> None:
        holders, size, now, alone = self._holders[at], self._block_bytes[at], self._clock_ns(), 0
        for block in blocks:
            held = holders[block]
            if len(held) == 1:
                del holders[block]
                alone += size
                continue
            place, count = held.index(account), len(held)
            del held[place]
            account.charge(at, -(size // count + (size % count if place == 0 else 0)), now)
            if place == 0:
                held[0].charge(at, size % count, now)
            self._split(held, at, count - 1, now, before=count)
            if len(held) == 1:
                held[0].own(size)
        if alone:
            account.charge(at, -alone, now)
            account.own(-alone)
        account.hold(at, -len(blocks), self.geometry)

    def _split(self, held: list[CallAccount], at: int, after: int, now: int, before: int = 0) -> None:
        """Charge the holders of a block, who paid for one of ``before`` parts, for one of ``after``; the first pays the
        rest of the division."""
        size = self._block_bytes[at]
        (old, old_rest), (new, new_rest) = divmod(size, before or len(held)), divmod(size, after)
        for account in held:
            account.charge(at, new - old + new_rest - old_rest, now)
            new_rest = old_rest = 0
