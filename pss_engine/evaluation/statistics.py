"""Statistics of paired runs. Every function takes plain numbers and a seed, and says what it assumes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pss_engine.errors import ConfigError

RESAMPLES = 10_000
Floats = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate and its 95 % percentile interval; ``n``: what it rests on."""

    estimate: float
    low: float
    high: float
    n: int


def _values(values: Sequence[float], what: str, least: int = 1) -> Floats:
    found = np.asarray(values, np.float64)
    if found.ndim != 1 or len(found) < least or not np.isfinite(found).all():
        raise ConfigError(f"{what} needs at least {least} finite numbers; {len(found)} were given")
    return found


def bootstrap(differences: Sequence[float], seed: int, resamples: int = RESAMPLES) -> Interval:
    """Mean of paired differences; pairs are drawn again with replacement."""
    values = _values(differences, "bootstrap")
    draws = np.random.default_rng(seed).integers(0, len(values), (resamples, len(values)))
    return _interval(float(values.mean()), values[draws].mean(1), len(values))


def stratified_bootstrap(strata: Mapping[str, Sequence[float]], seed: int, resamples: int = RESAMPLES) -> Interval:
    """Mean over all pairs; pairs are drawn again inside their category, whose sizes stay."""
    groups = [_values(values, f"category {name!r}") for name, values in sorted(strata.items())]
    if not groups:
        raise ConfigError("stratified bootstrap needs at least one category")
    rng, total = np.random.default_rng(seed), np.zeros(resamples)
    for group in groups:
        total += group[rng.integers(0, len(group), (resamples, len(group)))].sum(1)
    values = np.concatenate(groups)
    return _interval(float(values.mean()), total / len(values), len(values))


def cluster_bootstrap(cells: Mapping[str, Sequence[float]], seed: int, resamples: int = RESAMPLES) -> Interval:
    """Mean over cells of their means; cells are drawn again, then pairs inside them (CoA-PKV, appendix A.3).

    With few cells the interval is wide and still optimistic: it knows no more cells than were run.
    """
    groups = [_values(values, f"cell {name!r}") for name, values in sorted(cells.items())]
    if not groups:
        raise ConfigError("cluster bootstrap needs at least one cell")
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    for at in range(resamples):
        chosen = rng.integers(0, len(groups), len(groups))
        means[at] = np.mean([groups[c][rng.integers(0, len(groups[c]), len(groups[c]))].mean() for c in chosen])
    return _interval(float(np.mean([group.mean() for group in groups])), means, sum(map(len, groups)))


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p of ``only_first`` against ``only_second`` discordant pairs: binomial with one half."""
    if min(only_first, only_second) < 0:
        raise ConfigError(f"discordant pairs are {only_first} and {only_second}; they must be 0 or more")
    n, least = only_first + only_second, min(only_first, only_second)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(least + 1)) / 2**n)


def sign_flip(differences: Sequence[float], seed: int, resamples: int = RESAMPLES) -> float:
    """Two-sided p of the mean under random signs; exact up to 12 pairs, else ``(1 + hits) / (1 + resamples)``."""
    values = _values(differences, "sign-flip test")
    observed = abs(values.mean()) - 1e-12
    if len(values) <= 12:
        bits = (np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1
        return float((np.abs(((2 * bits - 1) * values).mean(1)) >= observed).mean())
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (resamples, len(values)))
    return float((1 + (np.abs((signs * values).mean(1)) >= observed).sum()) / (1 + resamples))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p values of a family; their maximum error rate is held however the tests depend on each other."""
    adjusted, highest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p))
        adjusted[name] = highest
    return adjusted


def replicate_band(groups: Sequence[Sequence[float]]) -> float:
    """Half width of the 95 % band of one run: ``1.96 s``, s pooled over groups that share configuration and questions.

    Raises:
        ConfigError: no group has two replicates. A band from inside one run knows sampling error only.
    """
    held = [_values(group, "a replicate group", 2) for group in groups if len(group) > 1]
    if not held:
        raise ConfigError("a band needs a group of at least 2 replicates")
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in held)
    return 1.96 * math.sqrt(squares / sum(len(group) - 1 for group in held))


def order_test(groups: Sequence[Sequence[float]]) -> tuple[int, int, float]:
    """Groups of replicates in order of time: how many rise strictly, of how many, and p of that many or more.

    Orders are uniform without contamination, so a group of k rises with probability 1/k!.
    """
    held = [list(group) for group in groups if len(group) > 1]
    rising = sum(all(a < b for a, b in itertools.pairwise(group)) for group in held)
    chances = [1.0]  # by number of rising groups
    for group in held:
        p = 1 / math.factorial(len(group))
        chances = [
            (chances[k] if k < len(chances) else 0.0) * (1 - p) + (chances[k - 1] * p if k else 0.0)
            for k in range(len(chances) + 1)
        ]
    return rising, len(held), min(1.0, sum(chances[rising:])) if held else 1.0


def non_inferior(interval: Interval, margin: float) -> bool:
    """Whether the interval of a difference lies above ``-margin``. Raises ConfigError for a margin of 0 or less."""
    if not margin > 0:
        raise ConfigError(f"margin is {margin}; it must be above 0")
    return interval.low > -margin


def _interval(estimate: float, resampled: Floats, n: int) -> Interval:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Interval(estimate, float(low), float(high), n)
