"""What each arm of a run came to. Every counter is in it; none can be left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pss_engine.evaluation import statistics
from pss_engine.evaluation.admission import Rows, totals

MEASURES: Mapping[str, Callable[[dict[str, Any]], float]] = {
    "kv_peak_bytes": lambda row: float(row["usage"]["kv_peak_bytes"]),
    "kv_cumulative_bytes": lambda row: float(row["usage"]["kv_cumulative_bytes"]),
    "declared_to_measured": lambda row: float(row["usage"]["declared_to_measured"]),
    "seconds": lambda row: float(row["seconds"]),
    "num_calls": lambda row: float(len(row["usage"]["calls"])),
    "prompt_tokens": lambda row: float(row["usage"]["prompt_tokens"]),
    "generated_tokens": lambda row: float(row["usage"]["generated_tokens"]),
    "f1": lambda row: float(row["f1"]),
    "exact_match": lambda row: float(row["exact_match"]),
}


def summary(config: Mapping[str, Any], records: Rows) -> dict[str, Any]:
    """By arm: each measure with the interval of the cluster bootstrap over cells, outcomes by cause, whose call was the
    peak, and all counters. KV figures leave out questions without any; F1 and exact match count failures as 0."""
    return {arm: _arm([row for row in records if row["arm"] == arm], config["seed"]) for arm in config["arms"]}


def _arm(rows: Rows, seed: int) -> dict[str, Any]:
    measured = [row for row in rows if row["usage"]["kv_peak_bytes"]]
    peaks = [call["agent"] for row in measured if (call := row["usage"]["kv_peak_call"])]
    return {
        "n": len(rows),
        "num_failed": sum(row["failed"] for row in rows),
        "outcomes": outcomes(rows),
        "measures": {
            name: _interval(rows if name in ("f1", "exact_match") else measured, value, seed)
            for name, value in MEASURES.items()
        },
        "peak_agents": {agent: peaks.count(agent) / len(peaks) for agent in sorted(set(peaks))},
        "counters": totals(rows),
    }


def _interval(rows: Rows, value: Callable[[dict[str, Any]], float], seed: int) -> dict[str, float] | None:
    cells: dict[str, list[float]] = {}
    for row in rows:
        cells.setdefault(row["cell"], []).append(value(row))
    return statistics.cluster_bootstrap(cells, seed)._asdict() if cells else None


def outcomes(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Questions by outcome, with the cause where there is one."""
    found: dict[str, int] = {}
    for row in rows:
        name = f"{row['outcome']}: {row['cause']}" if row["cause"] else row["outcome"]
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))
