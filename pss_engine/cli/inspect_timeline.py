"""``pss inspect timeline``: what calls held over time, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from pss_engine.cli.options import Json

By = Literal["session", "agent", "query", "call"]


def timeline(
    file: Path,
    /,
    *,
    by: Annotated[By, Parameter(help="Whose bytes are added up.")] = "session",
    picture: Annotated[
        Path | None, Parameter(help="Draw the curves to this .png or .svg file.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int:
    """Read a KV timeline: its peak, who held it, and a picture with the peak marked.

    Parameters
    ----------
    file
        What --kv-timeline (or EngineConfig.kv_timeline) wrote.
    """
    from pss_engine.cli.output import console, emit_json, facts, mib
    from pss_engine.kv.timeline import read_curves

    curves = read_curves(file, by)
    if picture:
        from pss_engine.cli.timeline_picture import draw

        draw(curves, picture)
    peak = {
        "bytes": curves.peak_bytes,
        "step": curves.steps[curves.peak_at],
        "time": curves.times[curves.peak_at],
        "owners": dict(curves.peak_owners),
    }
    if as_json:
        drawn = str(picture) if picture else None
        emit_json({"timeline": str(file), "by": by, "num_changes": len(curves.times), "peak": peak, "picture": drawn})
        return 0
    rows: list[tuple[str, object]] = [
        ("timeline", f"{file}: {len(curves.times)} changes in {curves.times[-1]:.2f} s"),
        ("peak", f"{mib(curves.peak_bytes)} at {peak['time']:.2f} s, step {peak['step']}"),
        *((f"  {name}", mib(held)) for name, held in curves.peak_owners[:10]),
    ]
    if picture:
        rows.append(("picture", picture))
    console().print(facts(rows))
    return 0
