"""What Prometheus scrapes is what the outputs say."""

from __future__ import annotations

import math

import pytest

from pss_engine.config import EngineConfig
from pss_engine.engine import Engine, Request, SamplingParams
from pss_engine.engine.collector import Collector
from pss_engine.kv import GROUPS
from tests.tiny import tiny_model

client = pytest.importorskip(
    "prometheus_client", reason="prometheus_client is not installed (the metrics extra has it)"
)


def scrape(engine) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Samples by name and labels, printed and parsed as a scrape does."""
    from prometheus_client.parser import text_string_to_metric_families

    registry = client.CollectorRegistry()
    registry.register(Collector(engine))
    text = client.generate_latest(registry).decode()
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def labelled(name, **labels):
    return (name, frozenset(labels.items()))


@pytest.fixture
def engine():
    return Engine(tiny_model(), EngineConfig(kv_cache_bytes=2**20, block_size=4))


def test_live_bytes_are_those_of_the_pools(engine):
    common = "a beginning that is shared, "
    engine.generate([Request(common, SamplingParams(max_new_tokens=2))])
    for at in range(2):
        params = SamplingParams(max_new_tokens=9, ignore_eos=True)
        engine.add(Request(common + "x" * at, params, agent=f"agent-{at}"))
    engine.step()
    found = scrape(engine)
    memory = engine.memory
    held = sum(found[labelled("pss:kv_bytes", group=group, held_by="calls")] for group in GROUPS)
    cached = sum(found[labelled("pss:kv_bytes", group=group, held_by="cache")] for group in GROUPS)
    charged = [found[labelled("pss:kv_bytes_charged", agent=f"agent-{at}")] for at in range(2)]
    assert (held, held + cached) == (memory.bytes_in_use, memory.bytes_occupied)
    assert sum(charged) == held > 0
    holders = ("calls", "cache", "nobody")
    everything = [found[labelled("pss:kv_bytes", group=group, held_by=who)] for group in GROUPS for who in holders]
    assert sum(everything) == memory.bytes_total
    assert found[labelled("vllm:kv_cache_usage_perc")] == held / memory.bytes_total
    assert found[labelled("vllm:num_requests_running")] == 2


def test_ended_calls_are_the_sums_of_their_usages(engine):
    params = SamplingParams(max_new_tokens=5, ignore_eos=True)
    outputs = engine.generate([Request("one of several " * (at + 1), params, agent="a") for at in range(3)])
    usages, found = [output.usage for output in outputs], scrape(engine)
    sums = {
        "vllm:prompt_tokens_total": sum(usage.prompt_tokens for usage in usages),
        "vllm:generation_tokens_total": sum(usage.generated_tokens for usage in usages),
        "pss:kv_bytes_allocated_total": sum(usage.kv_allocated_bytes for usage in usages),
        "pss:kv_bytes_cumulative_total": sum(usage.kv_peak_bytes for usage in usages),
        "pss:kv_bytes_rounding_total": sum(usage.kv_rounding_bytes for usage in usages),
        "pss:kv_bytes_peak_sum": sum(usage.kv_peak_bytes for usage in usages),
        "pss:kv_bytes_peak_count": 3,
    }
    assert {name: found[labelled(name, agent="a")] for name in sums} == sums
    seconds = sum(usage.kv_byte_seconds for usage in usages)
    assert math.isclose(found[labelled("pss:kv_byte_seconds_total", agent="a")], seconds)
    below = [value for (name, _), value in found.items() if name == "pss:kv_bytes_peak_bucket"]
    assert below == sorted(below)
    assert found[labelled("pss:kv_bytes_peak_bucket", agent="a", le="1048576.0")] == 3
    assert found[labelled("vllm:request_success_total", finished_reason="done")] == 3
