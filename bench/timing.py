"""Seconds: paired repeats, warm-up, percentiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

PERCENTILES = (0.2, 0.5, 0.8)


def quantiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """p20, p50 and p80 of the samples, linear between neighbours (numpy's default). Raises ValueError for none."""
    if not samples:
        raise ValueError("no samples: at least one is needed")
    ordered = sorted(float(sample) for sample in samples)
    low, middle, high = (_quantile(ordered, share) for share in PERCENTILES)
    return low, middle, high


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def paired_seconds(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    warmup: int = 1,
    synchronize: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each function, ``repeats`` times.

    Every repeat runs all of them, each time beginning with another one, so that whatever slows the machine for a while
    slows them alike.

    Args:
        warmup: calls of each function before the first that counts.
        synchronize: waits for the device; called before each reading of the clock.
    """
    names = list(functions)
    for function in functions.values():
        for _ in range(warmup):
            function()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            synchronize()
            start = time.perf_counter()
            functions[name]()
            synchronize()
            seconds[name].append(time.perf_counter() - start)
    return seconds
