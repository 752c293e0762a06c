"""Pictures of the report, drawn from what a suite kept beside its rows."""

from __future__ import annotations

import os
from pathlib import Path

from bench.environment import say
from pss_engine.errors import BackendUnavailable


def timeline_of(suite: str, folder: Path) -> Path:
    """Where a suite keeps the KV timeline that the report draws."""
    return folder / f"{suite}_timeline.jsonl"


def draw(rows: Path) -> None:
    """Draw the picture of a suite, if it has one, beside its file of rows."""
    from pss_engine.cli import timeline_picture
    from pss_engine.kv.timeline import read_curves

    timeline = timeline_of(rows.stem, rows.parent)
    if not timeline.exists():
        return
    try:
        timeline_picture.draw(read_curves(timeline), timeline.with_suffix(".svg"))
    except BackendUnavailable as error:
        say(f"bench: the picture of {rows.stem} stays as it was: {error}")


def link(rows: Path, folder: Path) -> str:
    """Markdown of a suite's picture for a text in ``folder``; empty where it has none."""
    from pss_engine.kv.timeline import read_curves

    timeline = timeline_of(rows.stem, rows.parent)
    if not timeline.exists():
        return ""
    place = Path(os.path.relpath(timeline.with_suffix(".svg"), folder)).as_posix()
    return f"\n\n![KV over time by session, peak {read_curves(timeline).peak_bytes / 2**20:.1f} MiB]({place})"
