"""Percentiles and paired repeats."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import timing
from bench.timing import paired_seconds, quantiles, wait_until_idle


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_quantiles_are_numpys(samples: list[float]) -> None:
    assert quantiles(samples) == pytest.approx(tuple(np.percentile(samples, [20, 50, 80])), rel=1e-9, abs=1e-6)


def test_one_sample_is_all_three() -> None:
    assert quantiles([3.0]) == (3.0, 3.0, 3.0)


def test_no_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        quantiles([])


def test_every_repeat_runs_all_in_turn_after_the_warm_up() -> None:
    calls: list[str] = []
    seconds = paired_seconds({name: partial(calls.append, name) for name in "abc"}, 3, warmup=1)
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(found) for name, found in seconds.items()} == {"a": 3, "b": 3, "c": 3}


def test_the_device_is_waited_for_before_each_reading_of_the_clock() -> None:
    calls: list[str] = []
    paired_seconds({"a": lambda: calls.append("a")}, 2, warmup=0, synchronize=lambda: calls.append("wait"))
    assert calls == ["wait", "a", "wait"] * 2


def test_what_leaves_threads_awake_does_not_disturb_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(timing, "is_busy", lambda: calls[-1] == "b")
    monkeypatch.setattr(timing, "wait_until_idle", lambda: calls.append("-"))
    seconds = paired_seconds({name: partial(calls.append, name) for name in "abc"}, 2, warmup=1)
    assert "".join(calls) == "ab-c" + "ab-cc" + "b-cca"
    assert {name: len(found) for name, found in seconds.items()} == {"a": 2, "b": 2, "c": 2}


def test_a_thread_that_runs_is_seen_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, clock, used = [True, True, False], [0.0], [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        used[0] += seconds if busy.pop(0) else 0.0

    monkeypatch.setattr(
        timing, "time", SimpleNamespace(perf_counter=lambda: clock[0], process_time=lambda: used[0], sleep=sleep)
    )
    wait_until_idle()
    assert busy == []
    busy += [True] * 1000
    wait_until_idle(patience_s=1.0)
    assert len(busy) > 900
