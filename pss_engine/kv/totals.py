"""Sums over the calls that have ended, by agent: what counters and histograms are made of. Integers only."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from pss_engine.kv.usage import CallUsage

MIB = 1024 * 1024
PEAK_BOUNDS = tuple(MIB << power for power in range(15))
"""Upper bounds of the histogram of peaks: 1 MiB to 16 GiB, each twice the one before."""


@dataclass
class AgentTotals:
    """Calls of one agent.

    Attributes:
        peak_counts: calls by the smallest bound that their logical peak does not exceed; the last entry is beyond all.
    """

    num_calls: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    cached_shared_tokens: int = 0
    peak_bytes: int = 0
    allocated_bytes: int = 0
    rounding_bytes: int = 0
    byte_seconds: float = 0.0
    reused_blocks: int = 0
    peak_counts: list[int] = field(default_factory=lambda: [0] * (len(PEAK_BOUNDS) + 1))


class Totals:
    """Everything that ended since the ledger was made."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentTotals] = {}

    def add(self, usage: CallUsage) -> None:
        totals = self.agents.setdefault(usage.agent, AgentTotals())
        totals.num_calls += 1
        totals.prompt_tokens += usage.prompt_tokens
        totals.generated_tokens += usage.generated_tokens
        totals.cached_tokens += usage.cached_tokens
        totals.cached_shared_tokens += usage.cached_shared_tokens
        totals.peak_bytes += usage.kv_peak_bytes
        totals.allocated_bytes += usage.kv_allocated_bytes
        totals.rounding_bytes += usage.kv_rounding_bytes
        totals.byte_seconds += usage.kv_byte_seconds
        totals.reused_blocks += usage.kv_reused_blocks
        totals.peak_counts[bisect_left(PEAK_BOUNDS, usage.kv_peak_bytes)] += 1
