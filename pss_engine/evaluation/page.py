"""A run as one HTML page that needs nothing else: pictures, gaps, counters, and every question's trace for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pss_engine.evaluation.svg import bars, calls_over_time

_PICTURES = (
    ("kv_peak_bytes", "Peak KV of a question: its largest call"),
    ("kv_cumulative_bytes", "Cumulative KV of a question: all its calls"),
    ("declared_to_measured", "Declared tokens of all calls over the measured peak"),
    ("seconds", "Seconds for a question"),
)
_STYLE = (
    "body{font:15px/1.45 sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}svg{display:block;margin:1em 0}"
    "summary{cursor:pointer}pre{white-space:pre-wrap;margin:0}.failed{color:#b00020}"
)


def page(document: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
    """HTML of a report (see ``pss eval report``) and the records that it rests on."""
    arms = document["arms"]
    parts = [f"<h1>Run of {escape(', '.join(arms))}</h1>", _facts(document)]
    for key, title in _PICTURES:
        text = _mib if key.endswith("bytes") else _plain
        parts.append(bars(title, {name: arm["measures"][key] for name, arm in arms.items()}, text))
    longest = max(records, key=lambda row: len(row["usage"]["calls"]), default=None)
    if longest is not None:
        title = f"KV over time: {longest['question_id']}, {longest['arm']}"
        parts.append(calls_over_time(title, longest["spans"], _mib))
    parts += [_ablation(document), _counters(arms), "<h2>Questions</h2>", *map(_question, records)]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Agents</title>'
        f"<style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def _facts(document: Mapping[str, Any]) -> str:
    rows = [
        [
            name,
            arm["n"],
            arm["num_failed"],
            *(_number(arm["measures"][key]) for key in ("f1", "exact_match", "num_calls")),
        ]
        for name, arm in document["arms"].items()
    ]
    return _table(["arm", "n", "failed", "F1", "exact match", "calls"], rows)


def _ablation(document: Mapping[str, Any]) -> str:
    found = document["ablation"]
    if found is None:
        return f"<h2>Ablation</h2><p>None: {escape(document['no_ablation'])}.</p>"
    rows = []
    for name, cell in found["cells"].items():
        effects = cell["effects"]
        told = (
            [_number(effects["f1"]), _signed(effects["kv_peak_bytes"])] if effects else ["gap", "; ".join(cell["gaps"])]
        )
        rows.append([name, *told, *(_share(cell["reachability"][key]) for key in ("as_sent", "content_only"))])
    band = found["floor"]["band"]
    floor = f"95 % band of one run: {band:.3f}" if band is not None else f"No floor: {found['floor']['gap']}"
    header = ["cell", "F1 of recall", "peak KV of recall", "reachable", "content only"]
    return f"<h2>Ablation</h2>{_table(header, rows)}<p>{escape(floor)}.</p>"


def _counters(arms: Mapping[str, Any]) -> str:
    names = dict.fromkeys(name for arm in arms.values() for name in arm["counters"])
    rows = [[name, *(arm["counters"].get(name, 0) for arm in arms.values())] for name in names]
    return f"<h2>Counters</h2>{_table(['counter', *arms], rows)}"


def _question(row: Mapping[str, Any]) -> str:
    peak = row["usage"]["kv_peak_call"]
    head = (
        f"{row['question_id']} · {row['arm']} · {row['outcome']}{': ' + row['cause'] if row['cause'] else ''}"
        f" · F1 {row['f1']:.2f} · peak {_mib(row['usage']['kv_peak_bytes'])}{' in ' + peak['agent'] if peak else ''}"
    )
    steps = "".join(
        f"<tr><td>{escape(step['agent'])}</td><td>{step['question'] + 1 or ''}</td><td>{step['loop'] or ''}</td>"
        f"<td>{'' if step['score'] is None else step['score']}</td>"
        f"<td style='text-align:left'><pre>{escape(step['text'])}</pre></td></tr>"
        for step in row["steps"]
    )
    asked = f"<p>{escape(row['request']['question'])}<br>Answer: {escape(row['answer'])}"
    gold = f"<br>Gold: {escape(' / '.join(row['gold']))}</p>"
    header = "<tr><th>agent</th><th>part</th><th>loop</th><th>score</th><th>said</th></tr>"
    mark = " class='failed'" if row["failed"] else ""
    return f"<details><summary{mark}>{escape(head)}</summary>{asked}{gold}<table>{header}{steps}</table></details>"


def _table(header: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(str(name))}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _number(found: Mapping[str, float] | None) -> str:
    return f"{found['estimate']:.3f} [{found['low']:.3f}, {found['high']:.3f}]" if found else "-"


def _signed(found: Mapping[str, float] | None) -> str:
    return f"{_mib(found['estimate'])} [{_mib(found['low'])}, {_mib(found['high'])}]" if found else "-"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _mib(value: float) -> str:
    return f"{value / 2**20:.3f} MiB"


def _plain(value: float) -> str:
    return f"{value:.2f}"
