"""The single owner of truth about KV bytes: every block change is charged to a call. Integers only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from pss_engine.kv.geometry import GROUPS, KVGeometry


@dataclass
class CallUsage:
    """What one call held in KV cache.

    ``kv_peak_bytes`` counts tokens: (prompt + generated tokens whose keys were stored) x bytes per token; the last
    sampled token is never stored. ``kv_peak_bytes_allocated`` counts whole blocks. ``kv_allocated_bytes`` adds up every
    block newly allocated to the call, also those allocated again after a preemption.
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
    """Charges of the live calls. ``bytes_in_use`` always equals the blocks that the pools have given out."""

    def __init__(self, geometry: KVGeometry) -> None:
        self.geometry = geometry
        self._live: dict[str, CallUsage] = {}
        self._held: dict[str, dict[str, int]] = {}
        self.peak_bytes_in_use = 0

    @property
    def num_live_calls(self) -> int:
        return len(self._live)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of all blocks held by live calls."""
        return sum(self._held_bytes(call_id) for call_id in self._live)

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
        call = self._live[call_id]
        self._held[call_id][group] += num_blocks
        call.kv_allocated_bytes += num_blocks * self.geometry.block_bytes(group)
        call.kv_peak_bytes_allocated = max(call.kv_peak_bytes_allocated, self._held_bytes(call_id))
        self.peak_bytes_in_use = max(self.peak_bytes_in_use, self.bytes_in_use)

    def stored(self, call_id: str, num_tokens: int) -> None:
        """The call's cache now holds ``num_tokens`` tokens."""
        call = self._live[call_id]
        call.kv_peak_tokens = max(call.kv_peak_tokens, num_tokens)
        call.kv_peak_bytes = call.kv_peak_tokens * self.geometry.bytes_per_token

    def preempted(self, call_id: str) -> None:
        """All blocks of the call were given back; it will start over."""
        self._live[call_id].num_preemptions += 1
        self._held[call_id] = dict.fromkeys(GROUPS, 0)

    def close(self, call_id: str, generated_tokens: int) -> CallUsage:
        """The call is over and its blocks are given back."""
        del self._held[call_id]
        call = self._live.pop(call_id)
        call.generated_tokens = generated_tokens
        return call

    def check(self, used_blocks: dict[str, int], live: Iterable[str]) -> None:
        """Raise unless the charges equal what the pools have given out and the calls are those that live.

        Args:
            used_blocks: blocks in use by group, from the pools.
            live: ids of the calls that the engine knows.
        """
        for group in GROUPS:
            charged = sum(held[group] for held in self._held.values())
            if charged != used_blocks[group]:
                raise ValueError(f"ledger: {charged} {group} blocks are charged, {used_blocks[group]} are in use")
        unknown = set(self._live) ^ set(live)
        if unknown:
            raise ValueError(f"ledger: calls {sorted(unknown)[:8]} are live on one side only")

    def _held_bytes(self, call_id: str) -> int:
        return sum(count * self.geometry.block_bytes(group) for group, count in self._held[call_id].items())
