"""What moved between two runs: the ratio of the medians, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.report import number
from bench.rows import Row


def table(old: Sequence[Row], new: Sequence[Row]) -> str:
    """Rows of both runs with ``new p50 / old p50``, the largest change first; then what stands on one side only."""
    before, after = ({row.key: row for row in rows} for rows in (old, new))
    both = [(before[key], after[key]) for key in before if key in after]
    lines = [
        f"| {_name(b)} | {number(a.p50, a.unit)} | {number(b.p50, b.unit)} | {_ratio(a, b)} |"
        for a, b in sorted(both, key=lambda pair: -_change(*pair))
    ]
    notes = [
        f"{len(both)} rows compared; {len(before) - len(both)} are in OLD only, {len(after) - len(both)} in NEW only."
    ]
    if both and both[0][0].device != both[0][1].device:
        notes.append("The runs are of different devices: " + " and ".join(row.device["name"] for row in both[0]) + ".")
    return "\n".join(["| row | old p50 | new p50 | new / old |", "| --- | --- | --- | --- |", *lines, "", *notes])


def _name(row: Row) -> str:
    params = " ".join(f"{name}={value}" for name, value in row.params.items())
    return f"{row.case} {params} {row.backend} {row.metric}"


def _ratio(old: Row, new: Row) -> str:
    if old.p50 == new.p50:
        return "1.00"
    return f"{new.p50 / old.p50:.2f}" if old.p50 else "was 0"


def _change(old: Row, new: Row) -> float:
    if old.p50 == new.p50:
        return 0.0
    return abs(math.log(new.p50 / old.p50)) if old.p50 > 0 and new.p50 > 0 else math.inf
