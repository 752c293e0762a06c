"""Tables of a run: what each arm came to, what the ablation may say, and every counter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from pss_engine.cli.output import console, listing, mib


def show(document: Mapping[str, Any]) -> None:
    """Print a report of ``pss eval``."""
    out = console()
    out.print(_arms(document["arms"]))
    if document["ablation"]:
        out.print(_cells(document["ablation"]))
        for line in _facts(document["ablation"]):
            out.print(line)
    else:
        out.print(f"no ablation: {document['no_ablation']}")
    out.print(_counters(document["arms"]))


def _table(*columns: str) -> Table:
    table = listing()
    for at, name in enumerate(columns):
        table.add_column(name, justify="right" if at else "left")
    return table


def _between(found: Mapping[str, float] | None, text: Any = lambda value: f"{value:.3f}") -> str:
    return f"{text(found['estimate'])} [{text(found['low'])}, {text(found['high'])}]" if found else "-"


def _arms(arms: Mapping[str, Any]) -> Table:
    table = _table("arm", "n", "failed", "F1", "peak KV", "cumulative", "declared/peak", "calls", "s", "peak in")
    for name, arm in arms.items():
        measures = arm["measures"]
        agent = max(arm["peak_agents"], key=arm["peak_agents"].get, default="-")
        table.add_row(
            name,
            str(arm["n"]),
            str(arm["num_failed"]),
            _between(measures["f1"]),
            _between(measures["kv_peak_bytes"], mib),
            mib(measures["kv_cumulative_bytes"]["estimate"]) if measures["kv_cumulative_bytes"] else "-",
            *(f"{m['estimate']:.1f}" if (m := measures[key]) else "-" for key in ("declared_to_measured", "num_calls")),
            f"{measures['seconds']['estimate']:.1f}" if measures["seconds"] else "-",
            agent,
        )
    return table


def _cells(ablation: Mapping[str, Any]) -> Table:
    table = _table("cell", "F1 of recall", "without failures", "peak KV of recall", "reachable", "content only")
    for name, cell in ablation["cells"].items():
        reach = [f"{value:.0%}" if (value := cell["reachability"][key]) is not None else "-" for key in
                 ("as_sent", "content_only")]  # fmt: skip
        effects = cell["effects"]
        if effects is None:
            table.add_row(name, "gap", "gap", "gap", *reach)
            continue
        kv = _between(effects["kv_peak_bytes"], lambda value: f"{value / 2**20:+.3f} MiB")
        table.add_row(name, _between(effects["f1"]), _between(effects["f1_without_failed"]), kv, *reach)
    return table


def _facts(ablation: Mapping[str, Any]) -> list[str]:
    lines = [f"gap {name}: {reason}" for name, cell in ablation["cells"].items() for reason in cell["gaps"]]
    floor, order = ablation["floor"], ablation["order"]
    if ablation["pooled"]:
        kv = _between(ablation["pooled"]["kv_peak_bytes"], lambda value: f"{value / 2**20:+.3f} MiB")
        lines.append(f"pooled: F1 {_between(ablation['pooled']['f1'])}, peak KV {kv}")
    band = f"+-{floor['band']:.3f}" if floor["band"] is not None else f"unknown: {floor['gap']}"
    lines.append(f"floor: 95 % band of one run {band}")
    lines.append(
        f"order: scores rise with run order in {order['rising']} of {order['groups']} groups, p {order['p']:.3g}"
    )
    drifts = ", ".join(f"{arm} {value:.2f}" for arm, value in ablation["drift"].items() if value is not None)
    return [*lines, f"drift of latency, last third over first: {drifts or 'too few questions'}"]


def _counters(arms: Mapping[str, Any]) -> Table:
    table = _table("counter", *arms)
    names = dict.fromkeys(name for arm in arms.values() for name in arm["counters"])
    for name in names:
        table.add_row(name, *(str(arm["counters"].get(name, 0)) for arm in arms.values()))
    return table
