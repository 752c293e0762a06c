"""Seconds: paired repeats, warm-up, percentiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

PERCENTILES = (0.2, 0.5, 0.8)
PROBE_S = 0.012
"""Longer than the kernel's tick, by which the time of threads on other processors is counted."""


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


def is_busy() -> bool:
    """Whether a thread of this process runs while this one sleeps."""
    before = time.process_time()
    time.sleep(PROBE_S)
    return time.process_time() - before > PROBE_S / 2


def wait_until_idle(patience_s: float = 1.0) -> None:
    """Return once no thread of this process runs, at the latest after ``patience_s``."""
    end = time.perf_counter() + patience_s
    while is_busy() and time.perf_counter() < end:
        pass


def paired_seconds(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    warmup: int = 1,
    synchronize: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each function, ``repeats`` times.

    Every repeat runs all of them, each time beginning with another one, so that whatever slows the machine for a while
    slows them alike. Threads may wait awake when their call is over (those of OpenBLAS, which numpy calls, for 125 ms),
    and would take a processor from what is timed next: after a function that was seen to leave some, their rest is
    waited for, and the next function is called once before its call that counts.

    Args:
        warmup: calls of each function before the first that counts.
        synchronize: waits for the device; called before each reading of the clock.
    """
    names, lingering, last = list(functions), set(), ""
    for name, function in functions.items():
        for _ in range(warmup):
            function()
        if is_busy():
            lingering.add(name)
            wait_until_idle()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            if last in lingering:
                wait_until_idle()
                functions[name]()
            synchronize()
            start = time.perf_counter()
            functions[name]()
            synchronize()
            seconds[name].append(time.perf_counter() - start)
            last = name
    return seconds
