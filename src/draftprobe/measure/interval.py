"""Estimates with 95 % intervals when observations come in clusters (here: tokens in sequences).

Knows numbers per cluster, not what they count. Everything is a ratio of sums over clusters, whose
variance is taken between clusters; tokens of one text are far from independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval.

    Attributes:
        value: None where there is nothing to count.
        low: lower end, None where fewer than 2 clusters leave the spread unknown; high: upper end.
        n: observations counted.
        clusters: independent groups that hold them.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    clusters: int


NOTHING = Estimate(None, None, None, 0, 0)


def proportion(hits: ArrayLike, counts: ArrayLike) -> Estimate:
    """Share of hits, from hits and counts per cluster, with a modified Wilson interval.

    Wilson's interval with the effective sample size n / deff in place of n and Student's t with
    clusters - 1 degrees of freedom in place of the normal quantile, as recommended for complex
    samples by Franco, Little, Louis and Slud, "Comparative Study of Confidence Intervals for
    Proportions in Complex Sample Surveys", J. Survey Stat. Methodol. 7 (2019) 334-364. deff is the
    variance of the ratio between clusters over p (1 - p) / n. It is taken as at least 1, and as 1
    where all observations agree, since then no spread between clusters can be seen. With few
    clusters and p near 0 or 1 the spread is known badly: 8 clusters of strongly related tokens at
    p = 0.05 cover 91 %.
    """
    y, m = _clusters(hits, counts)
    n, clusters = float(m.sum()), m.size
    if not n:
        return NOTHING
    p = float(y.sum()) / n
    if clusters < 2:
        return Estimate(p, None, None, int(n), clusters)
    variance, simple = _variance((y - p * m) / n), p * (1 - p) / n
    effective = n * min(1.0, simple / variance) if variance > 0 else n
    z = _quantile(clusters - 1)
    # (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    middle = p + z * z / (2 * effective)
    half = z * sqrt(p * (1 - p) / effective + (z / (2 * effective)) ** 2)
    scale = 1 + z * z / effective
    low, high = max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
    return Estimate(p, min(low, p), max(high, p), int(n), clusters)


def ratio(totals: ArrayLike, counts: ArrayLike) -> Estimate:
    """Sum of totals over sum of counts, per cluster: a mean per observation, or tokens per round.

    The interval is value +- t s, where s^2 is the linearised variance between clusters (Cochran,
    Sampling Techniques, 3rd ed. 1977, section 6.3) and t has clusters - 1 degrees of freedom.
    """
    y, m = _clusters(totals, counts)
    if not m.sum():
        return NOTHING
    value = float(y.sum() / m.sum())
    return _around(value, (y - value * m) / m.sum(), int(m.sum()))


def ratio_difference(
    totals_a: ArrayLike, counts_a: ArrayLike, totals_b: ArrayLike, counts_b: ArrayLike
) -> Estimate:
    """ratio(b) - ratio(a) on the same clusters, paired: what the two share cancels.

    ``n`` is the counts of ``b``; a cluster must be counted in both, or it is left out of both.
    """
    ya, ma, yb, mb = (_floats(x) for x in (totals_a, counts_a, totals_b, counts_b))
    both = (ma > 0) & (mb > 0)
    ya, ma, yb, mb = (x[both] for x in (ya, ma, yb, mb))
    if not ma.size:
        return NOTHING
    a, b = ya.sum() / ma.sum(), yb.sum() / mb.sum()
    influence = (yb - b * mb) / mb.sum() - (ya - a * ma) / ma.sum()
    return _around(float(b - a), influence, int(mb.sum()))


def sum_of_ratios(parts: Sequence[tuple[ArrayLike, ArrayLike]]) -> Estimate:
    """Sum of several ratios on the same clusters, each given as (totals, counts) per cluster.

    ``n`` is the counts of the first; the parts may be as dependent as they like.
    """
    pairs = [(_floats(totals), _floats(counts)) for totals, counts in parts]
    pairs = [(y, m) for y, m in pairs if m.sum()]
    if not pairs:
        return NOTHING
    used = pairs[0][1] > 0
    value = sum(float(y.sum() / m.sum()) for y, m in pairs)
    influence = sum(((y - y.sum() / m.sum() * m) / m.sum() for y, m in pairs), np.zeros(used.size))
    return _around(value, influence[used], int(pairs[0][1].sum()))


def _around(value: float, influence: np.ndarray, n: int) -> Estimate:
    if influence.size < 2:
        return Estimate(value, None, None, n, influence.size)
    half = _quantile(influence.size - 1) * sqrt(_variance(influence))
    return Estimate(value, value - half, value + half, n, influence.size)


def _variance(influence: np.ndarray) -> float:
    """S / (S - 1) sum of squares: the influences sum to zero by construction."""
    return float(influence.size / (influence.size - 1) * np.square(influence).sum())


def _quantile(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def _floats(values: ArrayLike) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def _clusters(totals: ArrayLike, counts: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64, without the clusters that count nothing."""
    y, m = _floats(totals), _floats(counts)
    return y[m > 0], m[m > 0]
