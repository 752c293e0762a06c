"""The open accounts of the ledger: what a call holds now, and what it has come to."""

from __future__ import annotations

from pss_engine.kv.geometry import GROUPS, KVGeometry
from pss_engine.kv.usage import CallUsage, GroupUsage


class QueryAccount:
    """Live calls of one query together, and their highest sums."""

    __slots__ = ("charged", "logical", "num_calls", "peak_charged", "peak_logical", "planned")

    def __init__(self) -> None:
        self.num_calls = self.planned = self.charged = self.logical = self.peak_charged = self.peak_logical = 0


class CallAccount:
    """One live call. Lists have an entry for each layer group, in the order of ``GROUPS``.

    Attributes:
        blocks: blocks held.
        charged, exclusive: bytes by the ledger's rule; bytes of blocks that no other call holds.
        logical: bytes of the stored tokens.
        planned: bytes of the whole blocks of all tokens that the call may store.
        byte_ns: integral of the charged bytes up to ``since``, in bytes x nanoseconds.
    """

    __slots__ = (
        "blocks",
        "byte_ns",
        "charged",
        "exclusive",
        "logical",
        "planned",
        "query",
        "since",
        "stored",
        "usage",
    )

    def __init__(self, usage: CallUsage, query: QueryAccount | None, planned: int, now: int) -> None:
        self.usage, self.query, self.planned, self.since = usage, query, planned, now
        self.blocks, self.charged, self.stored = [0, 0], [0, 0], [0, 0]
        self.exclusive = self.logical = self.byte_ns = 0
        if query is not None:
            query.num_calls += 1
            query.planned += planned

    def charge(self, group: int, num_bytes: int, now: int) -> None:
        """Change what the call is charged for blocks of a group."""
        charged = self.charged
        self.byte_ns += (charged[0] + charged[1]) * (now - self.since)
        self.since = now
        charged[group] += num_bytes
        total, usage, query = charged[0] + charged[1], self.usage, self.query
        if total > usage.kv_peak_bytes_shared_fraction:
            usage.kv_peak_bytes_shared_fraction = total
        if query is not None:
            query.charged += num_bytes
            if query.charged > query.peak_charged:
                query.peak_charged = query.charged

    def own(self, num_bytes: int) -> None:
        """Change the bytes that only this call holds."""
        self.exclusive += num_bytes
        if self.exclusive > self.usage.kv_peak_bytes_exclusive:
            self.usage.kv_peak_bytes_exclusive = self.exclusive

    def hold(self, group: int, num_blocks: int, geometry: KVGeometry) -> None:
        """Hold so many blocks more, or fewer."""
        self.blocks[group] += num_blocks
        usage, held = self.usage, self.blocks[group]
        of_group = usage.groups[GROUPS[group]]
        if held > of_group.peak_blocks:
            of_group.peak_blocks = held
            usage.cut_hidden_peak_bytes = usage.groups[GROUPS[0]].peak_blocks * geometry.hidden_block_bytes
        allocated = self.allocated
        if allocated > usage.kv_peak_bytes_allocated:
            usage.kv_peak_bytes_allocated = allocated

    def store(self, num_tokens: int, num_shared: int, geometry: KVGeometry) -> None:
        """So many tokens are stored in all layers, and so many in the shared layers at least."""
        self.stored = [num_shared, num_tokens]
        logical = sum(count * geometry.token_bytes(group) for count, group in zip(self.stored, GROUPS, strict=True))
        added, self.logical = logical - self.logical, logical
        usage, query = self.usage, self.query
        usage.kv_peak_tokens = max(usage.kv_peak_tokens, num_tokens)
        usage.kv_peak_bytes = max(usage.kv_peak_bytes, logical)
        if query is not None:
            query.logical += added
            query.peak_logical = max(query.peak_logical, query.logical)

    @property
    def allocated(self) -> int:
        groups = self.usage.groups
        return sum(count * groups[group].block_bytes for count, group in zip(self.blocks, GROUPS, strict=True))

    def settle(self, geometry: KVGeometry, now: int) -> None:
        """Write what the call holds at its end into its usage."""
        self.charge(0, 0, now)
        usage = self.usage
        usage.kv_end_bytes, usage.kv_end_bytes_allocated = self.logical, self.allocated
        usage.kv_end_bytes_exclusive, usage.kv_end_bytes_shared_fraction = self.exclusive, sum(self.charged)
        usage.kv_byte_seconds = self.byte_ns / 1e9
        for group, held, stored in zip(GROUPS, self.blocks, self.stored, strict=True):
            usage.groups[group].end_blocks = held
            empty = held * geometry.block_size - stored
            usage.kv_rounding_bytes += max(0, empty) * geometry.token_bytes(group)
        if (query := self.query) is not None:
            usage.kv_query_peak_bytes, usage.kv_query_peak_bytes_shared_fraction = (
                query.peak_logical,
                query.peak_charged,
            )
            query.num_calls -= 1
            query.planned -= self.planned
        else:
            usage.kv_query_peak_bytes = usage.kv_peak_bytes
            usage.kv_query_peak_bytes_shared_fraction = usage.kv_peak_bytes_shared_fraction


def group_usages(geometry: KVGeometry) -> dict[str, GroupUsage]:
    return {group: GroupUsage(geometry.block_bytes(group)) for group in GROUPS}
