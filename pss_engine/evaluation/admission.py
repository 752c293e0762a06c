"""Whether a cell of an ablation may be believed: mechanical checks over the run's records (CoA-PKV, section 5 and A.1).

A cell that fails any is a gap with its reasons, never a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]
EXECUTED = (
    "num_units_written",
    "num_evidence_searches",
    "num_reranked",
    "num_loops",
    "num_recall_searches",
    "num_traces_written",
)
"""Counters whose components the enabled arm claims."""
SWITCHED = ("num_recall_searches", "num_recalled", "num_traces_written")
"""Counters that must be 0 in the disabled arm."""


def totals(rows: Rows) -> dict[str, int]:
    """Every counter over the rows, also those that are 0."""
    found: dict[str, int] = {}
    for row in rows:
        for name, value in row["counters"].items():
            found[name] = found.get(name, 0) + value
    return found


def differing(first: dict[str, Any], second: dict[str, Any]) -> set[str]:
    """Fields in which two serialised requests differ; one that only one of them has differs too."""
    absent = object()
    return {name for name in first.keys() | second.keys() if first.get(name, absent) != second.get(name, absent)}


def gaps(on: Rows, off: Rows, checks: Rows, replicates: int, num_questions: int) -> list[str]:
    """Reasons why the pair of arms of one cell is no ablation; empty = admitted.

    Args:
        on, off: rows of the enabled and of the disabled arm.
        checks: of every replicate: contamination and the live probe.
    """
    reasons: list[str] = []
    for name, rows in (("enabled", on), ("disabled", off)):
        if len(rows) != replicates * num_questions:
            reasons.append(f"the {name} arm has {len(rows)} records; {replicates * num_questions} are planned")
    reasons += _provenance(on, off)
    reasons += _one_axis(on, off)
    reasons += _executed(on, off)
    reasons += _isolated(checks, replicates)
    reasons += _balanced(on, off)
    return reasons


def _provenance(on: Rows, off: Rows) -> list[str]:
    """The switch was the request's field, read by the service; what cannot be read fails."""
    reasons = []
    for name, rows, wanted in (("enabled", on, True), ("disabled", off, False)):
        wrong = sum(
            row.get("recall_allowed") is not wanted or row["request"].get("kv_enabled") is not wanted for row in rows
        )
        if wrong:
            reasons.append(
                f"{wrong} records of the {name} arm do not say that their request set kv_enabled to {wanted}"
            )
    return reasons


def _one_axis(on: Rows, off: Rows) -> list[str]:
    others = {(row["replicate"], row["question_id"]): row["request"] for row in off}
    fields: set[str] = set()
    unpaired = 0
    for row in on:
        other = others.get((row["replicate"], row["question_id"]))
        unpaired += other is None
        fields |= differing(row["request"], other) if other is not None else set()
    reasons = [f"{unpaired} questions of the enabled arm have no partner"] if unpaired else []
    if fields != {"kv_enabled"}:
        reasons.append(
            f"requests differ in {', '.join(sorted(fields)) or 'nothing'}; they must differ in kv_enabled alone"
        )
    return reasons


def _executed(on: Rows, off: Rows) -> list[str]:
    enabled, disabled = totals(on), totals(off)
    reasons = [
        f"{name} is 0 in the enabled arm: the component did not run" for name in EXECUTED if not enabled.get(name)
    ]
    return reasons + [
        f"{name} is {disabled[name]} in the disabled arm; it must be 0" for name in SWITCHED if disabled.get(name)
    ]


def _isolated(checks: Rows, replicates: int) -> list[str]:
    reasons = []
    found = {row["replicate"]: row for row in checks}
    for replicate in range(replicates):
        row = found.get(replicate)
        if row is None:
            reasons.append(f"replicate {replicate} was not checked before it began")
            continue
        if row["contaminated"]:
            reasons.append(
                f"replicate {replicate}: {len(row['contaminated'])} questions met a stored trace before the run"
            )
        probe = row["probe"]
        if not probe or not probe["on"]["recalled"]:
            reasons.append(f"replicate {replicate}: the live probe saw no recall with memory on")
        if not probe or probe["off"]["searches"] or probe["off"]["writes"] or probe["off"]["recalled"]:
            reasons.append(f"replicate {replicate}: the live probe saw the recall path with memory off")
    return reasons


def _balanced(on: Rows, off: Rows) -> list[str]:
    """Each arm went first about equally often: a diff of requests cannot see time."""
    others = {(row["replicate"], row["question_id"]): row["position"] for row in off}
    pairs = [(row["position"], others.get((row["replicate"], row["question_id"]))) for row in on]
    first = sum(mine < other for mine, other in pairs if other is not None)
    num_pairs = sum(other is not None for _, other in pairs)
    if num_pairs > 1 and abs(2 * first - num_pairs) > max(1, num_pairs // 5):
        return [f"the enabled arm went first in {first} of {num_pairs} pairs; order and arm are confounded"]
    return []
