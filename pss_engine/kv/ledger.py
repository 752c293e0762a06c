"""The single owner of truth about KV bytes: every block change is charged to a call. Integers only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from pss_engine.kv.geometry import GROUPS, SESSION, SHARED, KVGeometry


@dataclass
class CallUsage:
    """What one call held in KV cache.

    ``kv_peak_bytes`` counts tokens: (prompt + generated tokens whose keys were stored) x bytes per token; the last
    sampled token is never stored. ``kv_peak_bytes_allocated`` counts whole blocks, also those shared with other calls.
    ``kv_allocated_bytes`` adds up every block newly allocated to the call, also those allocated again after a
    preemption; blocks that the prefix cache had when the call (last) started are in ``kv_reused_blocks`` instead. Of
    its tokens ``cached_tokens`` were not run at all, ``cached_shared_tokens`` not below the cut.
    """

    call_id: str
    agent: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    kv_bytes_per_token: int = 0
    kv_block_tokens: int = 0
    kv_peak_tokens: int = 0
    kv_peak_bytes: int = 0
    kv_peak_bytes_allocated: int = 0
    kv_allocated_bytes: int = 0
    kv_reused_blocks: int = 0
    cached_tokens: int = 0
    cached_shared_tokens: int = 0
    state_bytes: int = 0
    num_preemptions: int = 0

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
        return self.peak_call.kv_peak_bytes if self.peak_call else 0

    @property
    def kv_cumulative_bytes(self) -> int:
        """Sum over the calls of each call's own peak, the figure the papers report."""
        return sum(call.kv_peak_bytes for call in self.calls)

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
            "kv_cumulative_bytes": self.kv_cumulative_bytes,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "calls": [call.to_dict() for call in self.calls],
        }


class KVLedger:
    """Charges of the live calls: each holds blocks of each group, and the holds add up to the pools' references."""

    def __init__(self, geometry: KVGeometry) -> None:
        self.geometry = geometry
        self._live: dict[str, CallUsage] = {}
        self._held: dict[str, dict[str, int]] = {}

    @property
    def num_live_calls(self) -> int:
        return len(self._live)

    def open(self, call_id: str, prompt_tokens: int, agent: str = "", state_bytes: int = 0) -> None:
        if call_id in self._live:
            raise ValueError(f"call {call_id!r} is already in the ledger")
        self._live[call_id] = CallUsage(
            call_id,
            agent,
            prompt_tokens=prompt_tokens,
            kv_bytes_per_token=self.geometry.bytes_per_token,
            kv_block_tokens=self.geometry.block_size,
            state_bytes=state_bytes,
        )
        self._held[call_id] = dict.fromkeys(GROUPS, 0)

    def allocated(self, call_id: str, group: str, num_blocks: int) -> None:
        """``num_blocks`` new blocks of a layer group now belong to the call."""
        self._live[call_id].kv_allocated_bytes += num_blocks * self.geometry.block_bytes(group)
        self._hold(call_id, group, num_blocks)

    def reused(self, call_id: str, num_blocks: dict[str, int]) -> None:
        """Blocks with a known prefix, by group, are held by the call too: their tokens need no run."""
        call, block_size = self._live[call_id], self.geometry.block_size
        call.kv_reused_blocks = sum(num_blocks.values())
        call.cached_tokens, call.cached_shared_tokens = (num_blocks[g] * block_size for g in (SESSION, SHARED))
        for group, count in num_blocks.items():
            self._hold(call_id, group, count)

    def stored(self, call_id: str, num_tokens: int) -> None:
        """The call's cache now holds ``num_tokens`` tokens."""
        call = self._live[call_id]
        call.kv_peak_tokens = max(call.kv_peak_tokens, num_tokens)
        call.kv_peak_bytes = call.kv_peak_tokens * self.geometry.bytes_per_token

    def released(self, call_id: str) -> None:
        """All blocks of the call were given back; it is still open."""
        self._held[call_id] = dict.fromkeys(GROUPS, 0)

    def preempted(self, call_id: str) -> None:
        self._live[call_id].num_preemptions += 1

    def close(self, call_id: str, generated_tokens: int) -> CallUsage:
        """The call is over and its blocks are given back."""
        del self._held[call_id]
        call = self._live.pop(call_id)
        call.generated_tokens = generated_tokens
        return call

    def check(self, references: dict[str, int], live: Iterable[str]) -> None:
        """Raise unless the holds equal what the pools have given out and the calls are those that live.

        Args:
            references: holds on blocks by group, from the pools.
            live: ids of the calls that the engine knows.
        """
        for group in GROUPS:
            charged = sum(held[group] for held in self._held.values())
            if charged != references[group]:
                raise ValueError(f"ledger: {charged} {group} blocks are charged, {references[group]} are in use")
        unknown = set(self._live) ^ set(live)
        if unknown:
            raise ValueError(f"ledger: calls {sorted(unknown)[:8]} are live on one side only")

    def _hold(self, call_id: str, group: str, num_blocks: int) -> None:
        held, call = self._held[call_id], self._live[call_id]
        held[group] += num_blocks
        held_bytes = sum(count * self.geometry.block_bytes(name) for name, count in held.items())
        call.kv_peak_bytes_allocated = max(call.kv_peak_bytes_allocated, held_bytes)
