"""Intervals against theory, against scipy, and their error rates on series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from finrl_pod.errors import InputError
from finrl_pod.evaluate.statistics import binomial_interval, block_length, excess_p_value, growth_interval


def ar1(seed: int, bars: int, coefficient: float) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.01, bars)
    series = np.zeros(bars)
    for t in range(1, bars):
        series[t] = coefficient * series[t - 1] + noise[t]
    return series


def test_interval_of_independent_returns_is_that_of_the_central_limit_theorem():
    x = np.random.default_rng(3).normal(0.0005, 0.01, 4000)
    low, high = growth_interval(x, 0.90, seed=1, draws=4000)
    half = stats.norm.ppf(0.95) * x.std(ddof=1) / np.sqrt(len(x))
    assert (low, high) == pytest.approx((x.mean() - half, x.mean() + half), abs=0.12 * half)


def test_interval_widens_with_autocorrelation_as_theory_says():
    x = ar1(5, 6000, 0.6)
    low, high = growth_interval(x, 0.90, seed=1, draws=2000)
    independent = 2 * stats.norm.ppf(0.95) * x.std() / np.sqrt(len(x))
    # The variance of the mean of an AR(1) is (1 + a) / (1 - a) = 4 times that of independent draws.
    assert (high - low) / independent == pytest.approx(2.0, rel=0.2)
    assert block_length(x) > 3 * block_length(np.random.default_rng(0).normal(size=6000))


def test_the_p_value_is_that_of_a_t_test_on_independent_returns():
    x = np.random.default_rng(11).normal(0.0004, 0.01, 2000)
    assert excess_p_value(x, draws=4000) == pytest.approx(
        stats.ttest_1samp(x, 0, alternative="greater").pvalue, abs=0.03
    )


def test_the_p_value_rejects_a_true_null_at_its_level():
    rejected = sum(excess_p_value(ar1(seed, 500, 0.2), seed=seed, draws=99) <= 0.05 for seed in range(300))
    low, high = binomial_interval(rejected, 300, 0.999)
    assert low <= 0.05 <= high


def test_p_values_at_the_ends():
    draws = 99
    assert excess_p_value(np.zeros(50), draws=draws) == 1.0
    assert excess_p_value(np.full(50, 0.001), draws=draws) == pytest.approx(1 / (draws + 1))
    strong = np.random.default_rng(0).normal(0.01, 0.001, 200)
    assert excess_p_value(strong, draws=draws) == pytest.approx(1 / (draws + 1))
    assert excess_p_value(-strong, draws=draws) == 1.0


def test_a_seed_gives_the_same_interval_and_another_seed_another():
    x = np.random.default_rng(0).normal(size=200)
    assert growth_interval(x, seed=7, draws=200) == growth_interval(x, seed=7, draws=200)
    assert growth_interval(x, seed=7, draws=200) != growth_interval(x, seed=8, draws=200)


def test_a_constant_series_has_an_interval_of_no_width():
    assert growth_interval(np.full(30, 0.25), draws=50) == (0.25, 0.25)


def test_a_series_that_moves_once_has_an_interval():
    x = np.zeros(300)
    x[150] = 0.01
    low, high = growth_interval(x, draws=200)
    assert 0.0 <= low <= high


@pytest.mark.parametrize(("k", "n"), [(0, 20), (1, 20), (20, 20), (7, 300)])
def test_exact_interval_inverts_the_binomial_tails(k, n):
    low, high = binomial_interval(k, n, 0.95)
    if k > 0:
        assert stats.binom.sf(k - 1, n, low) == pytest.approx(0.025, rel=1e-6)
    else:
        assert low == 0.0
    if k < n:
        assert stats.binom.cdf(k, n, high) == pytest.approx(0.025, rel=1e-6)
    else:
        assert high == 1.0


@pytest.mark.parametrize("bad", [np.zeros(5), np.zeros((30, 2)), np.full(30, np.nan), np.r_[np.zeros(30), np.inf]])
def test_series_that_cannot_be_resampled_are_refused(bad):
    with pytest.raises(InputError):
        growth_interval(bad)


def test_levels_draws_and_counts_out_of_range_are_refused():
    for call in (
        lambda: growth_interval(np.zeros(30), 1.0),
        lambda: growth_interval(np.zeros(30), draws=0),
        lambda: binomial_interval(3, 2),
        lambda: binomial_interval(0, 0),
        lambda: binomial_interval(-1, 5),
    ):
        with pytest.raises(InputError):
            call()
