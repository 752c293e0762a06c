"""What enabling recall costs and buys, cell by cell, with all that is needed to believe it or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pss_engine.errors import ConfigError
from pss_engine.evaluation import statistics
from pss_engine.evaluation.admission import Rows, gaps, totals
from pss_engine.evaluation.reachability import reachable, stripped
from pss_engine.evaluation.summary import outcomes
from pss_engine.retrieval import Encoder

ON, OFF = "coa-pkv", "coa-nokv"


def ablation(config: Mapping[str, Any], records: Rows, checks: Rows, encoder: Encoder) -> dict[str, Any]:
    """The report of a run with both arms: cells, pooled effects, counters, order, drift, band, reachability.

    Raises:
        ConfigError: an arm of the ablation is missing.
    """
    if missing := [arm for arm in (ON, OFF) if arm not in config["arms"]]:
        raise ConfigError(f"the run has no arm {missing[0]!r}; an ablation needs {ON} and {OFF}")
    replicates, seed = config["replicates"], config["seed"]
    threshold = config["limits"]["recall_threshold"]
    by_cell = {cell: [row for row in records if row["cell"] == cell] for cell in config["cells"]}
    cells = {}
    for cell, rows in sorted(by_cell.items()):
        on, off = (_arm(rows, arm) for arm in (ON, OFF))
        reasons = gaps(on, off, checks, replicates, config["cells"][cell])
        reach = _reach(on, encoder, threshold)
        cells[cell] = {
            "admitted": not reasons,
            "gaps": reasons,
            "effects": _effects(_pairs(on, off), seed) if not reasons else None,
            "reachability": reach["shares"],
            "by_reach": _by_reach(on, off, reach["as_sent"], seed) if not reasons else None,
        }
    admitted = [cell for cell, found in cells.items() if found["admitted"]]
    return {
        "cells": cells,
        "pooled": _pooled({cell: _pairs(*(_arm(by_cell[cell], arm) for arm in (ON, OFF))) for cell in admitted}, seed),
        "floor": _floor(records, replicates),
        "order": _order(records, replicates),
        "drift": {arm: drift([row for row in records if row["arm"] == arm]) for arm in config["arms"]},
        "counters": {arm: totals(_arm(records, arm)) for arm in config["arms"]},
        "faults": {arm: outcomes([row for row in _arm(records, arm) if row["failed"]]) for arm in config["arms"]},
    }


def _arm(rows: Rows, arm: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["arm"] == arm]


def _pairs(on: Rows, off: Rows) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Both arms' rows of each question, matched by its text and replicate."""
    others = {(row["replicate"], row["request"]["question"]): row for row in off}
    keyed = [(row, others.get((row["replicate"], row["request"]["question"]))) for row in on]
    return [(mine, other) for mine, other in keyed if other is not None]


def _effects(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], seed: int) -> dict[str, Any]:
    """Enabled minus disabled; failures score 0, and beside it without pairs in which either failed."""
    both = [(a, b) for a, b in pairs if not (a["failed"] or b["failed"])]
    measured = [(a, b) for a, b in pairs if a["usage"]["kv_peak_bytes"] and b["usage"]["kv_peak_bytes"]]
    return {
        "f1": _boot([a["f1"] - b["f1"] for a, b in pairs], seed),
        "f1_without_failed": _boot([a["f1"] - b["f1"] for a, b in both], seed),
        "kv_peak_bytes": _boot([_peak(a) - _peak(b) for a, b in measured], seed),
        "sign_flip_p": statistics.sign_flip([a["f1"] - b["f1"] for a, b in pairs], seed) if pairs else None,
        "mcnemar_p": statistics.mcnemar(
            sum(a["exact_match"] > b["exact_match"] for a, b in pairs),
            sum(a["exact_match"] < b["exact_match"] for a, b in pairs),
        ),
    }


def _peak(row: dict[str, Any]) -> float:
    return float(row["usage"]["kv_peak_bytes"])


def _boot(differences: Sequence[float], seed: int) -> dict[str, float] | None:
    return statistics.bootstrap(differences, seed)._asdict() if differences else None


def _pooled(cells: Mapping[str, Sequence[tuple[dict[str, Any], dict[str, Any]]]], seed: int) -> dict[str, Any] | None:
    if not cells:
        return None
    measures = {"f1": lambda row: float(row["f1"]), "kv_peak_bytes": _peak}
    return {
        name: statistics.cluster_bootstrap(
            {cell: [value(a) - value(b) for a, b in pairs] for cell, pairs in cells.items()}, seed
        )._asdict()
        for name, value in measures.items()
    }


def _scores(records: Rows, replicates: int) -> dict[str, list[float]]:
    """Mean F1 of each replicate in order of time, by arm and cell."""
    groups: dict[str, list[list[float]]] = {}
    for row in records:
        group = groups.setdefault(f"{row['arm']} / {row['cell']}", [[] for _ in range(replicates)])
        group[row["replicate"]].append(row["f1"])
    return {name: [float(np.mean(f1)) for f1 in group if f1] for name, group in groups.items()}


def _floor(records: Rows, replicates: int) -> dict[str, Any]:
    """The band that an effect must exceed, from replicates; None with the reason where there is one replicate only."""
    try:
        return {"band": statistics.replicate_band(list(_scores(records, replicates).values())), "gap": ""}
    except ConfigError as error:
        return {"band": None, "gap": str(error)}


def _order(records: Rows, replicates: int) -> dict[str, Any]:
    rising, groups, p = statistics.order_test(list(_scores(records, replicates).values()))
    return {"rising": rising, "groups": groups, "p": p}


def drift(rows: Rows) -> float | None:
    """Median seconds of the last third of an arm's questions over those of its first third."""
    seconds = [row["seconds"] for row in sorted(rows, key=lambda row: row["position"])]
    third = len(seconds) // 3
    return float(np.median(seconds[-third:]) / np.median(seconds[:third])) if third else None


def _reach(on: Rows, encoder: Encoder, threshold: float) -> dict[str, Any]:
    """Over answered questions in the order asked, replicate by replicate."""
    keys, as_sent, content = [], list[bool](), list[bool]()
    for replicate in sorted({row["replicate"] for row in on}):
        rows = sorted((row for row in on if row["replicate"] == replicate), key=lambda row: row["position"])
        texts = [row["request"]["question"] for row in rows if not row["failed"]]
        keys += [(replicate, text) for text in texts]
        as_sent += reachable(encoder, texts, threshold)
        content += reachable(encoder, stripped(texts), threshold)
    shares = {
        "as_sent": float(np.mean(as_sent)) if as_sent else None,
        "content_only": float(np.mean(content)) if content else None,
    }
    return {"shares": shares, "as_sent": dict(zip(keys, as_sent, strict=True))}


def _by_reach(on: Rows, off: Rows, reached: Mapping[tuple[int, str], bool], seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, wanted in (("reachable", True), ("unreachable", False)):
        chosen = [
            a["f1"] - b["f1"]
            for a, b in _pairs(on, off)
            if reached.get((a["replicate"], a["request"]["question"])) is wanted and not b["failed"]
        ]
        found[name] = _boot(chosen, seed)
    return found
