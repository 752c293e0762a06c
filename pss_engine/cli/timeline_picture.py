"""KV over time as a picture: stacked by owner, the cached blocks above, the peak marked. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pss_engine.errors import BackendUnavailable, ConfigError
from pss_engine.kv.timeline import Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg")
MAX_OWNERS = 9
# Okabe and Ito: told apart by people who see colours differently, and in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999", "#44546A")
MIB = 1024 * 1024


def draw(curves: Curves, path: Path) -> None:
    """Draw to a ``.png`` or ``.svg`` file.

    Raises:
        ConfigError: another suffix, or a file that cannot be written.
        BackendUnavailable: matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"picture {str(path)!r}: suffix {path.suffix!r} is unknown; choices: {', '.join(FORMATS)}")
    try:
        import matplotlib
    except ImportError:
        raise BackendUnavailable("pictures need matplotlib: pip install 'pss-engine[plot]'") from None
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "pss", "font.size": 9, "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 4), layout="constrained")
        _fill(figure.add_subplot(), curves)
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise ConfigError(f"picture {str(path)!r} cannot be written: {error.strerror}") from None


def _fill(axes: Axes, curves: Curves) -> None:
    names, values = _largest(curves)
    times = [*curves.times, curves.times[-1]]
    below = [0.0] * len(curves.times)
    for at, (name, curve) in enumerate(zip(names, values, strict=True)):
        above = [low + value / MIB for low, value in zip(below, curve, strict=True)]
        _band(axes, times, below, above, COLOURS[at % len(COLOURS)], name)
        below = above
    total = [low + value / MIB for low, value in zip(below, curves.cached, strict=True)]
    if any(curves.cached):
        _band(axes, times, below, total, "#E4E4E4", "cached prefixes, held by no call")
    peak_time, peak = curves.times[curves.peak_at], below[curves.peak_at]
    span = max(times[-1] - times[0], 1e-9)
    right = peak_time - times[0] > 0.6 * span
    axes.annotate(
        f"peak of calls {peak:.2f} MiB\nstep {curves.steps[curves.peak_at]}, {peak_time:.2f} s",
        xy=(peak_time, peak),
        xytext=(-12 if right else 12, 26),
        textcoords="offset points",
        ha="right" if right else "left",
        arrowprops={"arrowstyle": "->", "lw": 0.9},
        bbox={"boxstyle": "round,pad=0.25", "fc": "white", "ec": "#444444", "lw": 0.6},
        zorder=5,
    )
    axes.plot([peak_time], [peak], "o", color="black", markersize=4, zorder=6)
    axes.set(
        xlabel="time (s)",
        ylabel="KV held (MiB)",
        title=f"KV cache by {curves.by}",
        ylim=(0, max(1.05 * max(total), 1.35 * peak)),
    )
    axes.set_xlim(times[0], times[0] + span)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, reverse=True)


def _band(axes: Axes, times: list[float], low: list[float], high: list[float], colour: str, name: str) -> None:
    """A value holds until the next change, so bands have steps."""
    axes.fill_between(times, [*low, low[-1]], [*high, high[-1]], step="post", color=colour, linewidth=0, label=name)


def _largest(curves: Curves) -> tuple[list[str], list[tuple[int, ...]]]:
    """The owners that held most at any time, in order of appearance; the others together as one."""
    if len(curves.names) <= MAX_OWNERS:
        return list(curves.names), list(curves.values)
    ranked = sorted(range(len(curves.names)), key=lambda at: -max(curves.values[at]))
    kept = sorted(ranked[: MAX_OWNERS - 1])
    others = [sum(curves.values[at][i] for at in ranked[MAX_OWNERS - 1 :]) for i in range(len(curves.times))]
    names = [*(curves.names[at] for at in kept), f"{len(curves.names) - len(kept)} others"]
    return names, [*(curves.values[at] for at in kept), tuple(others)]
