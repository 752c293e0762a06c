"""Percentiles and paired repeats."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.timing import paired_seconds, quantiles


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
