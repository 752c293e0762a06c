"""Statistics against known results, and by simulation: intervals cover, families hold their error rate."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pss_engine.errors import ConfigError
from pss_engine.evaluation import statistics as s

RNG = np.random.default_rng


def test_mcnemar_is_the_exact_binomial():
    assert s.mcnemar(0, 0) == 1.0
    assert s.mcnemar(1, 8) == pytest.approx(2 * (1 + 9) / 2**9)
    assert s.mcnemar(5, 5) == 1.0
    assert s.mcnemar(0, 10) == s.mcnemar(10, 0) == pytest.approx(2 / 2**10)


def test_sign_flip_counts_all_signs_of_few_pairs():
    assert s.sign_flip([1.0, 2.0, 3.0], 0) == pytest.approx(2 / 8)
    assert s.sign_flip([1.0, -1.0], 0) == 1.0
    assert s.sign_flip([0.0] * 5, 0) == 1.0
    values = list(RNG(1).normal(0.8, 1, 12))
    exact = sum(
        abs(sum(a * b for a, b in zip(values, signs, strict=True))) >= abs(sum(values)) - 1e-9
        for signs in itertools.product((-1, 1), repeat=12)
    )
    assert s.sign_flip(values, 0) == pytest.approx(exact / 2**12)
    assert s.sign_flip([*values, 0.0], 0) == pytest.approx(exact / 2**12, abs=0.02)


def test_holm_by_hand():
    assert s.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": 0.03, "c": 0.06, "b": 0.06}
    assert s.holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
    assert s.holm({}) == {}


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=6))
def test_holm_never_lowers_and_keeps_the_order(p_values):
    adjusted = s.holm(p_values)
    assert all(p <= adjusted[name] <= 1 for name, p in p_values.items())
    for a, b in itertools.combinations(p_values, 2):
        if p_values[a] < p_values[b]:
            assert adjusted[a] <= adjusted[b]


def test_holm_holds_the_family_wise_error_rate():
    wrong = 0
    for seed in range(400):
        p_values = {str(at): s.sign_flip(RNG((seed, at)).normal(0, 1, 10), 0) for at in range(4)}
        wrong += min(s.holm(p_values).values()) <= 0.05
    assert wrong / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("kind", ["plain", "stratified"])
def test_bootstrap_intervals_cover_the_truth(kind):
    hits = 0
    for seed in range(300):
        values = RNG(seed).normal(0.3, 1, 60)
        if kind == "plain":
            found = s.bootstrap(values, seed, 600)
        else:
            found = s.stratified_bootstrap({"a": values[:20], "b": values[20:]}, seed, 600)
        hits += found.low <= 0.3 <= found.high
    assert 0.90 <= hits / 300 <= 0.99


def test_the_cluster_bootstrap_knows_that_cells_differ():
    hits, widths = 0, []
    for seed in range(150):
        rng = RNG(seed)
        cells = {str(cell): rng.normal(rng.normal(0.3, 0.5), 1, 20) for cell in range(16)}
        found = s.cluster_bootstrap(cells, seed, 300)
        hits += found.low <= 0.3 <= found.high
        flat = s.bootstrap(np.concatenate(list(cells.values())), seed, 300)
        widths.append((found.high - found.low) / (flat.high - flat.low))
    assert hits / 150 >= 0.88 and np.median(widths) > 1.3


def test_intervals_are_reproducible_and_hold_their_estimate():
    values = [0.1, 0.2, 0.9, -0.3]
    assert s.bootstrap(values, 7) == s.bootstrap(values, 7)
    for found in (s.bootstrap(values, 7), s.cluster_bootstrap({"a": values, "b": [0.0]}, 7, 500)):
        assert found.low <= found.estimate <= found.high
    assert s.bootstrap([0.5], 0) == (0.5, 0.5, 0.5, 1)


def test_a_band_is_pooled_over_groups_with_replicates():
    assert s.replicate_band([[0.1, 0.3], [0.5]]) == pytest.approx(1.96 * math.sqrt(0.02))
    pooled = s.replicate_band([[0.0, 0.2], [0.4, 0.4, 0.4]])
    assert pooled == pytest.approx(1.96 * math.sqrt(0.02 / 3))
    with pytest.raises(ConfigError, match="at least 2 replicates"):
        s.replicate_band([[0.1], [0.2]])


def test_the_order_test_is_the_papers():
    groups = [list(range(size)) for size in (2, 3, 3, 2, 3, 2)]
    rising, count, p = s.order_test(groups)
    assert (rising, count) == (6, 6) and p == pytest.approx((1 / 2) ** 3 * (1 / 6) ** 3)
    assert s.order_test([[1.0, 1.0], [2.0]]) == (0, 1, 1.0)
    assert s.order_test([]) == (0, 0, 1.0)
    # one of two groups of 2 or more: 3/4
    assert s.order_test([[1, 2], [2, 1]])[2] == pytest.approx(0.75)


def test_non_inferiority_looks_at_the_lower_end():
    assert s.non_inferior(s.Interval(0.0, -0.04, 0.04, 9), 0.05)
    assert not s.non_inferior(s.Interval(0.0, -0.06, 0.04, 9), 0.05)


@pytest.mark.parametrize(
    "call",
    [
        lambda: s.bootstrap([], 0),
        lambda: s.bootstrap([float("nan")], 0),
        lambda: s.cluster_bootstrap({}, 0),
        lambda: s.stratified_bootstrap({"a": []}, 0),
        lambda: s.mcnemar(-1, 2),
        lambda: s.sign_flip([], 0),
        lambda: s.non_inferior(s.Interval(0, 0, 0, 1), 0.0),
    ],
)
def test_nothing_is_computed_from_nothing(call):
    with pytest.raises(ConfigError):
        call()
