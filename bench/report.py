"""Rows to markdown: the tables of README and docs. A published number is printed from a row, never typed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.rows import Row, newest_run, read_rows
from pss_engine.errors import ConfigError

_MARK = re.compile(r"(<!-- bench:([\w-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def section(rows: Sequence[Row]) -> str:
    """A table for each case of one run, and a line that says what it was measured on."""
    cases = list(dict.fromkeys(row.case for row in rows))
    tables = [table([row for row in rows if row.case == case], case) for case in cases]
    return "\n\n".join([*tables, provenance(rows[0])])


def of_file(rows: Path) -> str:
    """The section of the run that was appended last."""
    return section(newest_run(read_rows(rows)))


def table(rows: Sequence[Row], case: str) -> str:
    """p50, then (p20 to p80) where they differ. Params that all rows share stand above.

    A line is a setting of the other params; its columns are the metrics, or the backends where there is one metric.
    Where no param varies, a line is a metric and the columns are the backends.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.params))
    varied = [name for name in names if len({json.dumps(row.params.get(name)) for row in rows}) > 1]
    fixed = "; ".join(f"{_words(name)} {rows[0].params[name]}" for name in names if name not in varied)
    one_metric = len({row.metric for row in rows}) == 1
    by_backend = one_metric or not varied
    beside = [] if one_metric else ["metric" if by_backend else "backend"]
    columns = list(dict.fromkeys(row.backend if by_backend else row.metric for row in rows))
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        settings = [str(row.params.get(name, "")) for name in varied]
        key = (*settings, *(_words(row.metric) if by_backend else row.backend for _ in beside))
        lines.setdefault(key, {})[row.backend if by_backend else row.metric] = _cell(row) + _speed(row)
    head = [*map(_words, varied), *beside, *(columns if by_backend else map(_words, columns))]
    body = [[*key, *(cells.get(column, "") for column in columns)] for key, cells in lines.items()]
    title = f"**{case}**" + (f": {_words(rows[0].metric)}" if one_metric else "") + (f" ({fixed})" if fixed else "")
    return "\n".join([title, "", _line(head), _line(["---"] * len(head)), *map(_line, body)])


def provenance(row: Row) -> str:
    device = row.device
    kind = device.get("isa") or device.get("arch")
    versions = ", ".join(f"{name} {version}" for name, version in row.versions.items())
    return (
        f"`{row.command}`, run {row.run} of {row.time[:10]}, commit {row.commit[:12]}: {device['name']}, "
        f"{device['cores']} cores, {kind}, {number(device['memory'], 'bytes')}; {versions}."
    )


def fill(text: str, tables: Mapping[str, str]) -> str:
    """The text with every part between ``<!-- bench:SUITE -->`` and ``<!-- /bench -->`` replaced by its table.

    Raises:
        ConfigError: no such mark, or one of a suite without rows.
    """
    wanted = [match[2] for match in _MARK.finditer(text)]
    if not wanted:
        raise ConfigError("the file has no <!-- bench:SUITE --> ... <!-- /bench --> to fill")
    if missing := sorted(set(wanted) - set(tables)):
        raise ConfigError(
            f"the file asks for {', '.join(missing)}, which has no rows; rows are there of: {', '.join(tables)}"
        )
    return _MARK.sub(lambda match: f"{match[1]}{tables[match[2]]}\n{match[3]}", text)


def line(row: Row) -> str:
    """A row in one line, for who watches a run."""
    params = " ".join(f"{name}={value}" for name, value in row.params.items())
    return (
        f"{row.case} [{params}] {row.backend}: {row.metric} {_cell(row)}{_speed(row)} n={row.n} checked={row.checked}"
    )


def number(value: float, unit: str) -> str:
    """Three significant digits in the unit's usual size."""
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "ratio":
        return f"{value:.2f} x"
    if unit == "tokens":
        return f"{value:,.0f} tokens"
    for size, name in {"s": _SECONDS, "bytes": _BYTES}.get(unit, ()):
        if abs(value) >= size:
            return f"{_digits(value / size)} {name}"
    return f"{value:.4g} {unit}" if unit != "s" else f"{_digits(value / 1e-6)} µs"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _cell(row: Row) -> str:
    if row.p20 == row.p80:
        return number(row.p50, row.unit)
    return f"{number(row.p50, row.unit)} ({number(row.p20, row.unit)} to {number(row.p80, row.unit)})"


def _speed(row: Row) -> str:
    if row.gbps is None:
        return ""
    return f", {row.gbps:.1f} GB/s" + (f" = {100 * row.gbps / row.limit_gbps:.0f} %" if row.limit_gbps else "")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
