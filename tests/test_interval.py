"""Intervals against closed forms, tabulated quantiles, hand counts and their own coverage."""

from math import sqrt

import numpy as np
import pytest

from draftprobe.measure.interval import (
    Estimate,
    proportion,
    ratio,
    ratio_difference,
    sum_of_ratios,
)

T_9 = 2.262157  # Student's t at 97.5 % with 9 and with 1 degrees of freedom, from the tables
T_1 = 12.706205


def test_equal_clusters_of_independent_tokens_give_the_textbook_wilson_interval():
    """Ten clusters whose spread is just binomial or less: deff is 1, t replaces z."""
    hits, counts = [2, 4, 3, 3, 3, 3, 3, 3, 3, 3], [10] * 10
    found = proportion(hits, counts)
    n, p, z = 100, 0.3, T_9
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert found.value == 0.3
    assert found.low == pytest.approx(middle - half, abs=1e-6)
    assert found.high == pytest.approx(middle + half, abs=1e-6)
    assert (found.n, found.clusters) == (100, 10)


def test_clusters_that_agree_within_count_as_single_observations():
    """Each cluster all right or all wrong: n_eff is the number of clusters, less one."""
    found = proportion([8, 8, 8, 0, 0, 0, 0, 0, 0, 0], [8] * 10)
    n, p, z = 9, 0.3, T_9  # variance between = S / (S - 1) * p (1 - p) / S
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert found.low == pytest.approx(middle - half, abs=1e-6)
    assert found.high == pytest.approx(middle + half, abs=1e-6)


def test_all_wrong_and_all_right_keep_a_one_sided_interval():
    none, every = proportion([0] * 10, [10] * 10), proportion([10] * 10, [10] * 10)
    assert (none.value, none.low) == (0, 0)
    assert none.high == pytest.approx(T_9**2 / (100 + T_9**2), abs=1e-6)  # Wilson at p = 0
    assert (every.value, every.high) == (1, 1)
    assert every.low == pytest.approx(1 - none.high, abs=1e-12)


def test_a_mean_of_two_clusters_by_hand():
    # 2/1 and 4/1: mean 3, standard error 1, one degree of freedom
    found = ratio([2, 4], [1, 1])
    assert found.value == 3
    assert found.low == pytest.approx(3 - T_1, abs=1e-4)
    assert found.high == pytest.approx(3 + T_1, abs=1e-4)


def test_equal_clusters_give_students_interval():
    values = [1.0, 2.5, 0.5, 3.0, 2.0, 1.5, 1.0, 4.0, 2.0, 2.5]
    found = ratio(values, [1] * 10)
    half = T_9 * np.std(values, ddof=1) / sqrt(10)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-5)
    scaled = ratio([7 * v for v in values], [7] * 10)
    assert (scaled.low, scaled.high) == pytest.approx((found.low, found.high))


def test_one_cluster_has_no_interval_and_none_has_no_value():
    assert proportion([3], [4]) == Estimate(0.75, None, None, 4, 1)
    assert ratio([6], [4]) == Estimate(1.5, None, None, 4, 1)
    assert ratio_difference([1], [2], [2], [2]) == Estimate(0.5, None, None, 2, 1)
    assert proportion([], []) == proportion([0], [0]) == Estimate(None, None, None, 0, 0)
    assert ratio([], []) == ratio_difference([], [], [], []) == sum_of_ratios([([], [])])


def test_a_cluster_that_counts_nothing_is_no_cluster():
    assert proportion([3, 0, 2], [5, 0, 4]) == proportion([3, 2], [5, 4])
    assert ratio([3, 0, 2], [5, 0, 4]) == ratio([3, 2], [5, 4])


def test_a_paired_difference_with_common_counts_is_the_mean_of_differences():
    a, b, m = [3, 1, 4, 1], [4, 1, 6, 2], [5, 5, 8, 3]
    paired = ratio_difference(a, m, b, m)
    direct = ratio(np.subtract(b, a), m)
    assert paired.value == pytest.approx(direct.value)
    assert (paired.low, paired.high) == pytest.approx((direct.low, direct.high))
    # What the two sides share cancels: far narrower than either side's own interval.
    noisy = [[x + 50 * (i % 2) for i, x in enumerate(side)] for side in (a, b)]
    shared = ratio_difference(noisy[0], [6] * 4, noisy[1], [6] * 4)
    assert shared.high - shared.low < 0.1 * (ratio(noisy[0], [6] * 4).high)


def test_a_sum_of_ratios_with_equal_counts_is_the_ratio_of_sums():
    a, b = [3, 1, 4, 1], [4, 1, 6, 2]
    total = sum_of_ratios([(a, [5, 5, 8, 3]), (b, [5, 5, 8, 3])])
    direct = ratio(np.add(a, b), [5, 5, 8, 3])
    assert total.value == pytest.approx(direct.value)
    assert (total.low, total.high) == pytest.approx((direct.low, direct.high))


@pytest.mark.parametrize(("clusters", "least"), [(8, 0.90), (40, 0.93)])
@pytest.mark.parametrize("p", [0.05, 0.4, 0.9])
def test_the_intervals_cover_what_they_should(clusters, least, p):
    """2,000 draws of clustered tokens (beta-binomial, unequal sizes): the truth lies inside 95 %.

    Eight clusters know their own spread badly where p is near 0 or 1: 91 % there.
    """
    random = np.random.default_rng(clusters)
    sizes = random.integers(20, 100, clusters)
    spread = 10.0  # within-cluster correlation 1 / 11
    rates = random.beta(p * spread, (1 - p) * spread, (2000, clusters))
    hits = random.binomial(sizes, rates)
    inside = binomial = 0
    for row in hits:
        found = proportion(row, sizes)
        inside += found.low <= p <= found.high
        half = 1.96 * sqrt(found.value * (1 - found.value) / sizes.sum())
        binomial += abs(found.value - p) <= half
    assert least <= inside / 2000 <= 0.995
    assert binomial / 2000 < 0.75  # what an interval that takes tokens as independent would cover


def test_the_ratio_interval_covers_what_it_should():
    """Emitted over rounds: rounds per sequence vary, and emitted follows them."""
    random = np.random.default_rng(7)
    inside = 0
    for _ in range(2000):
        rounds = random.integers(20, 60, 30)
        rates = random.beta(4, 6, 30)
        emitted = rounds + random.binomial(rounds, rates)
        found = ratio(emitted, rounds)
        inside += found.low <= 1.4 <= found.high
    assert 0.93 <= inside / 2000 <= 0.97
