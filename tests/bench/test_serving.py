"""The common tongue of serving stacks."""

from __future__ import annotations

import pytest

from bench.serving import Served, percentile


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_a_percentile_is_one_of_the_samples(share, expected):
    assert percentile(range(100, 0, -1), share) == expected


def test_the_ninety_ninth_of_a_few_is_the_largest():
    assert percentile([1.0, 3.0, 2.0], 0.99) == 3.0


def test_seconds_for_a_token_leave_the_first_one_out():
    served = Served([[1, 2, 3], [4]], [0.5, 0.25], [1.5, 0.25], 2.0)
    assert served.per_token_s == [0.5, 0.0]
    assert served.tokens_per_second == 2.0


def test_a_stack_that_tells_no_times_has_none():
    assert Served([[1, 2]], [], [], 1.0).per_token_s == []
