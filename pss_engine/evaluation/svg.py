"""Pictures of a run as SVG text: bars with intervals, and the calls of one query over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

COLORS = {
    "decomposer": "#4c78a8",
    "retriever": "#72b7b2",
    "reasoner": "#f58518",
    "critic": "#e45756",
    "synthesiser": "#54a24b",
    "answer_critic": "#b279a2",
}
_WIDTH, _LEFT, _ROW = 640, 110, 26


def bars(title: str, values: Mapping[str, Mapping[str, float] | None], text: Callable[[float], str]) -> str:
    """A bar for each name with its estimate and the whisker of its interval; None is drawn as a gap."""
    most = max((found["high"] for found in values.values() if found), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - 190) / most
    parts = []
    for at, (name, found) in enumerate(values.items()):
        top, middle = 30 + at * _ROW, 30 + at * _ROW + 9
        parts.append(_text(_LEFT - 8, middle + 4, name, "end"))
        if found is None:
            parts.append(_text(_LEFT, middle + 4, "gap"))
            continue
        low, estimate, high = (_LEFT + found[key] * scale for key in ("low", "estimate", "high"))
        parts.append(f'<rect x="{_LEFT}" y="{top}" width="{estimate - _LEFT:.1f}" height="18" fill="#9ecae9"/>')
        parts.append(f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"'
                     ' stroke="#333" fill="none"/>')  # fmt: skip
        label = f"{text(found['estimate'])} [{text(found['low'])}, {text(found['high'])}]"
        parts.append(_text(max(estimate, high) + 8, middle + 4, label))
    return _picture(title, 40 + len(values) * _ROW, parts)


def calls_over_time(title: str, spans: Sequence[Mapping[str, Any]], text: Callable[[float], str]) -> str:
    """The calls of one query: width is time, height is what a call held at its peak, colour is the agent.

    Calls that lived together stand on each other.
    """
    calls = [span for span in spans if span["name"].startswith("chat ") and "pss.kv.peak_bytes" in span["attributes"]]
    if not calls:
        return _picture(title, 60, [_text(_LEFT, 40, "no call brought an answer")])
    begin, end = min(span["start_ns"] for span in calls), max(span["end_ns"] for span in calls)
    placed: list[tuple[Mapping[str, Any], float]] = []
    for span in calls:
        beside = [(other, base) for other, base in placed if other["end_ns"] > span["start_ns"]]
        placed.append((span, max((base + _held(other) for other, base in beside), default=0.0)))
    most = max(base + _held(span) for span, base in placed) or 1.0
    x, y = (_WIDTH - 20) / max(1, end - begin), 180 / most
    parts = []
    for span, base in placed:
        agent = span["attributes"]["gen_ai.agent.name"]
        left, width = 10 + (span["start_ns"] - begin) * x, max(1.0, (span["end_ns"] - span["start_ns"]) * x)
        height = _held(span) * y
        parts.append(
            f'<rect x="{left:.1f}" y="{220 - base * y - height:.1f}" width="{width:.1f}" height="{height:.1f}"'
            f' fill="{COLORS.get(agent, "#999")}" stroke="#fff">'
            f"<title>{escape(agent)}: {text(_held(span))}</title></rect>"
        )
    for at, agent in enumerate(dict.fromkeys(span["attributes"]["gen_ai.agent.name"] for span in calls)):
        parts.append(f'<rect x="{10 + at * 100}" y="232" width="10" height="10" fill="{COLORS.get(agent, "#999")}"/>')
        parts.append(_text(24 + at * 100, 241, agent))
    parts.append(_text(10, 36, f"peak together {text(most)}, {(end - begin) / 1e9:.1f} s"))
    return _picture(title, 255, parts)


def _held(span: Mapping[str, Any]) -> float:
    return float(span["attributes"]["pss.kv.peak_bytes"])


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(title: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img"'
        ' font-family="sans-serif" font-size="12">'
        f'<title>{escape(title)}</title><text x="10" y="16" font-weight="bold">{escape(title)}</text>'
        f"{''.join(parts)}</svg>"
    )
