"""What calls and queries held in KV cache, as they are reported. The rule of who pays is in ``ledger.py``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class GroupUsage:
    """Blocks of one layer group. ``allocated_blocks`` adds up new ones, ``reused_blocks`` those of known prefixes."""

    block_bytes: int
    peak_blocks: int = 0
    end_blocks: int = 0
    allocated_blocks: int = 0
    reused_blocks: int = 0


@dataclass
class CallUsage:
    """What one call held in KV cache. Bytes are integers; each measure is given at its peak and at the call's end.

    Logical bytes (``kv_peak_bytes``) count tokens: (prompt + generated tokens whose keys were stored) x bytes per
    token; the last sampled token is never stored. They are the papers' measure and the headline of reports. Allocated
    bytes count whole blocks, also those shared with other calls; exclusive bytes those that no other call held at the
    time; ``shared_fraction`` bytes are what the ledger's rule charges: of a block with n holders an n-th.

    Attributes:
        query, session, agent: on whose account the call was made.
        max_new_tokens: declared by the request (after truncation to a budget).
        truncated_tokens: output tokens that a KV budget took from the request, which asked for that.
        cached_tokens, cached_shared_tokens: not run at all; not run below the cut.
        kv_declared_bytes: logical bytes of prompt + max_new_tokens, what a planner must assume.
        kv_allocated_bytes: every block newly allocated to the call, also those allocated again after a preemption;
            blocks that the prefix cache had when the call (last) started are in ``kv_reused_blocks`` instead.
        kv_rounding_bytes: of the blocks held at the end, bytes in which no token of the call is stored.
        kv_byte_seconds: integral of the charged (shared fraction) bytes over time; over all calls and the cached
            blocks together it is that of the bytes in use.
        kv_query_peak_bytes, kv_query_peak_bytes_shared_fraction: of all live calls of its query together, the highest
            while this call was live.
        cut_hidden_peak_bytes: hidden states at the cut beside the call's shared blocks: no KV, but memory all the same.
        recurrent_state_bytes: recurrent and convolution states, which do not grow.
        state_bytes: the session state (adapter) that it was decoded with.
        groups: blocks by layer group.
    """

    call_id: str
    agent: str = ""
    query: str = ""
    session: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    max_new_tokens: int = 0
    truncated_tokens: int = 0
    cached_tokens: int = 0
    cached_shared_tokens: int = 0
    num_preemptions: int = 0
    kv_dtype: str = ""
    kv_block_tokens: int = 0
    kv_bytes_per_token: int = 0
    kv_declared_bytes: int = 0
    kv_peak_tokens: int = 0
    kv_peak_bytes: int = 0
    kv_end_bytes: int = 0
    kv_peak_bytes_allocated: int = 0
    kv_end_bytes_allocated: int = 0
    kv_peak_bytes_exclusive: int = 0
    kv_end_bytes_exclusive: int = 0
    kv_peak_bytes_shared_fraction: int = 0
    kv_end_bytes_shared_fraction: int = 0
    kv_allocated_bytes: int = 0
    kv_reused_blocks: int = 0
    kv_rounding_bytes: int = 0
    kv_byte_seconds: float = 0.0
    kv_query_peak_bytes: int = 0
    kv_query_peak_bytes_shared_fraction: int = 0
    cut_hidden_peak_bytes: int = 0
    recurrent_state_bytes: int = 0
    state_bytes: int = 0
    groups: dict[str, GroupUsage] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class QueryUsage:
    """The calls of one query together: peak = the largest single call (and which), cumulative = the sum over calls."""

    calls: list[CallUsage] = field(default_factory=list)

    @property
    def peak_call(self) -> CallUsage | None:
        return max(self.calls, key=lambda call: call.kv_peak_bytes, default=None)

    @property
    def kv_peak_bytes(self) -> int:
        """Logical bytes of the largest single call, the figure the papers report."""
        return self.peak_call.kv_peak_bytes if self.peak_call else 0

    @property
    def kv_concurrent_peak_bytes(self) -> int:
        """Logical bytes of the query's calls that were live together, at most; ``kv_peak_bytes`` where none were."""
        return max((max(call.kv_query_peak_bytes, call.kv_peak_bytes) for call in self.calls), default=0)

    @property
    def kv_concurrent_peak_bytes_shared_fraction(self) -> int:
        """The same in charged bytes: blocks that the calls share among themselves count once."""
        return max((call.kv_query_peak_bytes_shared_fraction for call in self.calls), default=0)

    @property
    def kv_cumulative_bytes(self) -> int:
        """Sum over the calls of each call's own peak, the figure the papers report."""
        return sum(call.kv_peak_bytes for call in self.calls)

    @property
    def kv_allocated_bytes(self) -> int:
        """Bytes newly allocated over all calls: less than cumulative where prefixes were reused."""
        return sum(call.kv_allocated_bytes for call in self.calls)

    @property
    def kv_byte_seconds(self) -> float:
        return sum(call.kv_byte_seconds for call in self.calls)

    @property
    def kv_declared_bytes(self) -> int:
        return sum(call.kv_declared_bytes for call in self.calls)

    @property
    def declared_to_measured(self) -> float:
        """Declared (prompt + max_new_tokens) bytes of all calls over the measured peak; 0 without calls."""
        return self.kv_declared_bytes / self.kv_peak_bytes if self.kv_peak_bytes else 0.0

    @property
    def prompt_tokens(self) -> int:
        return sum(call.prompt_tokens for call in self.calls)

    @property
    def generated_tokens(self) -> int:
        return sum(call.generated_tokens for call in self.calls)

    def to_dict(self) -> dict[str, Any]:
        peak = self.peak_call
        return {
            "kv_peak_bytes": self.kv_peak_bytes,
            "kv_peak_call": {"call_id": peak.call_id, "agent": peak.agent} if peak else None,
            "kv_concurrent_peak_bytes": self.kv_concurrent_peak_bytes,
            "kv_concurrent_peak_bytes_shared_fraction": self.kv_concurrent_peak_bytes_shared_fraction,
            "kv_cumulative_bytes": self.kv_cumulative_bytes,
            "kv_allocated_bytes": self.kv_allocated_bytes,
            "kv_byte_seconds": self.kv_byte_seconds,
            "kv_declared_bytes": self.kv_declared_bytes,
            "declared_to_measured": self.declared_to_measured,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "calls": [call.to_dict() for call in self.calls],
        }
