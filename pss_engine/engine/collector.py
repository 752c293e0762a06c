"""An engine's figures for Prometheus: register a :class:`Collector` in any registry. Needs ``prometheus_client``.

Names that vLLM has keep its spelling; ours begin with ``pss:``. Labels are agents and layer groups, of which there are
few; calls, queries and sessions are in the usage of each output instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pss_engine.errors import BackendUnavailable
from pss_engine.kv import GROUPS
from pss_engine.kv.totals import PEAK_BOUNDS, AgentTotals

if TYPE_CHECKING:
    from prometheus_client import Metric

    from pss_engine.engine.engine import Engine

_PER_AGENT = {
    "prompt_tokens": ("vllm:prompt_tokens", "Prompt tokens of ended calls."),
    "generated_tokens": ("vllm:generation_tokens", "Generated tokens of ended calls."),
    "cached_tokens": ("pss:cached_tokens", "Prompt tokens that needed no run at all."),
    "cached_shared_tokens": ("pss:cached_shared_tokens", "Prompt tokens that needed no run below the cut."),
    "allocated_bytes": ("pss:kv_bytes_allocated", "KV bytes newly allocated to ended calls."),
    "rounding_bytes": ("pss:kv_bytes_rounding", "Bytes without a token in the blocks that calls held at their end."),
    "byte_seconds": ("pss:kv_byte_seconds", "Charged KV bytes of ended calls, integrated over their time."),
    "reused_blocks": ("pss:kv_blocks_reused", "Blocks that the prefix cache had."),
}
_COUNTERS = {
    "num_preemptions": ("vllm:num_preemptions", "Sequences whose blocks were taken back."),
    "num_audits": ("pss:kv_audits", "Times that the KV books were proved."),
    "num_audit_alarms": ("pss:kv_audit_alarms", "Times that the KV books did not balance."),
}


class Collector:
    """Reads the engine's books when it is scraped; safe from another thread than the engine's.

    Raises:
        BackendUnavailable: prometheus_client is not installed.
    """

    def __init__(self, engine: Engine) -> None:
        try:
            import prometheus_client  # noqa: F401
        except ImportError:
            raise BackendUnavailable("metrics need prometheus_client: pip install 'pss-engine[metrics]'") from None
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Metric families, as a ``prometheus_client`` registry asks for them."""
        yield from self._now()
        yield from self._counters()
        yield from self._ended(dict(self._engine.memory.ledger.totals.agents))

    def _now(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily as Gauge

        engine, memory = self._engine, self._engine.memory
        running = engine.num_running
        yield Gauge("vllm:num_requests_running", "Requests that have started.", running)
        yield Gauge("vllm:num_requests_waiting", "Requests that wait.", max(0, engine.num_unfinished - running))
        share = memory.bytes_in_use / memory.bytes_total
        yield Gauge("vllm:kv_cache_usage_perc", "Share of KV memory that live calls hold.", share)
        blocks = Gauge("pss:kv_bytes", "KV bytes by layer group and by who holds them.", labels=["group", "held_by"])
        for group in GROUPS:
            pool, size = memory.pools[group], memory.geometry.block_bytes(group)
            counts = {"calls": pool.num_used, "cache": pool.num_cached}
            for name, count in {**counts, "nobody": pool.num_blocks - sum(counts.values())}.items():
                blocks.add_metric([group, name], count * size)
        yield blocks
        charged = Gauge("pss:kv_bytes_charged", "KV bytes charged to live calls.", labels=["agent"])
        for agent, held in memory.ledger.charges("agent").items():
            charged.add_metric([agent], held)
        yield charged

    def _counters(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily as Counter

        counters = self._engine.counters
        for field, (name, text) in _COUNTERS.items():
            yield Counter(name, text, getattr(counters, field))
        ends = Counter("vllm:request_success", "Requests by their end.", labels=["finished_reason"])
        for reason, field in (("done", "finished"), ("abort", "aborted"), ("deadline", "expired"), ("error", "failed")):
            ends.add_metric([reason], getattr(counters, f"num_{field}"))
        yield ends

    def _ended(self, agents: dict[str, AgentTotals]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import HistogramMetricFamily as Histogram

        for field, (name, text) in _PER_AGENT.items():
            family = Counter(name, text, labels=["agent"])
            for agent, totals in agents.items():
                family.add_metric([agent], getattr(totals, field))
            yield family
        peaks = Histogram("pss:kv_bytes_peak", "Logical peak KV bytes of ended calls.", labels=["agent"])
        cumulative = Counter("pss:kv_bytes_cumulative", "Sum of the peaks of ended calls.", labels=["agent"])
        for agent, totals in agents.items():
            peaks.add_metric([agent], _buckets(totals.peak_counts), totals.peak_bytes)
            cumulative.add_metric([agent], totals.peak_bytes)
        yield peaks
        yield cumulative


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound."""
    bounds = [*(str(float(bound)) for bound in PEAK_BOUNDS), "+Inf"]
    return [(bound, sum(counts[: at + 1])) for at, bound in enumerate(bounds)]
