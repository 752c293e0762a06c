"""Pictures of the report, drawn from what a suite kept beside its rows."""

from __future__ import annotations

from pathlib import Path

from bench.environment import say
from pss_engine.errors import BackendUnavailable

TIMELINE = "{suite}_timeline.jsonl"


def timeline_of(suite: str, folder: Path) -> Path:
    """Where a suite keeps the KV timeline that the report draws."""
    return folder / TIMELINE.format(suite=suite)


def of(rows: Path, root: Path) -> str:
    """Markdown of a suite's picture, drawn anew; empty where it has none. ``rows`` is the suite's file of rows."""
    from pss_engine.cli.timeline_picture import draw
    from pss_engine.kv.timeline import read_curves

    timeline = timeline_of(rows.stem, rows.parent)
    if not timeline.exists():
        return ""
    picture, curves = timeline.with_suffix(".svg"), read_curves(timeline, "session")
    try:
        draw(curves, picture)
    except BackendUnavailable as error:
        say(f"bench: {picture.name} is as it was: {error}")
    place = picture.relative_to(root) if picture.is_relative_to(root) else picture
    return f"\n\n![KV over time by session, peak {curves.peak_bytes / 2**20:.1f} MiB]({place.as_posix()})"
