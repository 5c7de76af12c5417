"""The test of a mean: against scipy's t test and arch's long-run variance, and its size on simulated returns."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal, stats

from finrl_pod.errors import InputError
from finrl_pod.evaluate.significance import (
    MAX_Z_SCORE,
    REGRESSION,
    alpha_series,
    detectable_ratio,
    long_run_variance,
    mean_interval,
    mean_z_score,
)


def autoregressive(rng: np.random.Generator, coefficient: float, shape: tuple[int, ...]) -> np.ndarray:
    """AR(1) series along the last axis."""
    return np.asarray(signal.lfilter([1.0], [1.0, -coefficient], rng.normal(size=shape), axis=-1))


def test_equals_the_t_test_of_a_symmetric_series_without_autocorrelation() -> None:
    positive = np.random.default_rng(0).normal(size=100)
    series = np.random.default_rng(9).permutation(np.r_[positive, -positive]) + 0.1
    centred = series - series.mean()
    assert abs(centred[1:] @ centred[:-1] / (centred @ centred)) < 0.03  # bandwidth below one: the sample variance
    p_value = stats.ttest_1samp(series, 0.0, alternative="greater").pvalue
    assert stats.norm.sf(mean_z_score(series)) == pytest.approx(p_value, rel=1e-9)


def test_long_run_variance_equals_the_bartlett_kernel() -> None:
    from arch.covariance.kernel import Bartlett

    series = autoregressive(np.random.default_rng(1), 0.4, (3000,))
    centred = series - series.mean()
    first = centred[1:] @ centred[:-1] / (centred @ centred)
    bandwidth = int(1.1447 * (4 * first**2 * len(series) / (1 - first**2) ** 2) ** (1 / 3))
    assert bandwidth > 5
    reference = Bartlett(series, bandwidth=bandwidth, df_adjust=0).cov.long_run
    assert long_run_variance(series) == pytest.approx(float(np.asarray(reference).item()), rel=1e-6)
    assert long_run_variance(series) == pytest.approx(1 / 0.6**2, rel=0.2)  # of an AR(1): 1 / (1 - coefficient)^2


def test_sign_scale_and_bounds() -> None:
    series = np.random.default_rng(2).normal(0.05, 1.0, 500)
    assert mean_z_score(-series) == pytest.approx(-mean_z_score(series))
    assert mean_z_score(1e-5 * series) == pytest.approx(mean_z_score(series))
    shifted = [mean_z_score(series + d) for d in np.linspace(-0.5, 0.5, 21)]
    assert shifted == sorted(shifted)
    assert mean_z_score(series + 100.0) == MAX_Z_SCORE
    with pytest.raises(InputError, match="at least 20"):
        mean_z_score(series[:19])
    with pytest.raises(InputError, match="returns that vary"):
        mean_z_score(np.full(50, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("coefficient", [-0.3, 0.0, 0.3])
def test_size_with_autocorrelation(coefficient: float) -> None:
    """About 2.5% of series with mean 0 exceed 1.96, where the plain t test errs in up to 8% of them."""
    series = autoregressive(np.random.default_rng(3), coefficient, (1500, 1000))
    scores = np.array([mean_z_score(row) for row in series])
    assert 0.012 <= (scores > 1.96).mean() <= 0.042
    if coefficient > 0:
        naive = series.mean(1) / series.std(1) * np.sqrt(series.shape[1])
        assert (naive > 1.96).mean() > 0.06


@pytest.mark.slow
def test_size_with_skewness() -> None:
    """Where the plain t test accepts 3.5% of series with rare large losses at 2.5%, about 2.5% exceed 1.96."""
    series = 1 - np.random.default_rng(4).exponential(size=(4000, 200))
    scores = np.array([mean_z_score(row) for row in series])
    naive = stats.ttest_1samp(series, 0.0, axis=1, alternative="greater").pvalue
    assert (naive < 0.025).mean() > 0.033
    assert 0.018 <= (scores > stats.norm.isf(0.025)).mean() <= 0.034


@pytest.mark.parametrize(("bars", "level"), [(21, 0.025), (252, 0.025), (1000, 0.0125)])
def test_a_ratio_that_is_shown_half_of_the_time_is_just_significant(bars: int, level: float) -> None:
    series = np.random.default_rng(5).normal(size=bars)
    series = (series - series.mean()) / series.std() + detectable_ratio(bars, 252, level) / np.sqrt(252)
    assert stats.ttest_1samp(series, 0.0, alternative="greater").pvalue == pytest.approx(level)


def test_the_power_of_a_detectable_ratio() -> None:
    ratio = detectable_ratio(500, 252, 0.025, 0.8)
    series = np.random.default_rng(6).normal(size=(2000, 500)) + ratio / np.sqrt(252)
    p_values = stats.ttest_1samp(series, 0.0, axis=1, alternative="greater").pvalue
    assert (p_values <= 0.025).mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("level", [0.9, 0.5])
def test_interval_holds_the_means_that_are_not_rejected(level: float) -> None:
    series = autoregressive(np.random.default_rng(7), 0.3, (800,)) - np.random.default_rng(8).exponential(size=800)
    interval = mean_interval(series, level)
    assert interval.value == pytest.approx(series.mean())
    quantile = stats.norm.ppf((1 + level) / 2)
    assert mean_z_score(series - interval.low) == pytest.approx(quantile)
    assert mean_z_score(series - interval.high) == pytest.approx(-quantile)
    symmetric = np.r_[series - series.mean(), series.mean() - series]
    narrow = mean_interval(symmetric, level)
    assert narrow.high == pytest.approx(-narrow.low)


def test_alpha_series_is_the_intercept_of_a_regression() -> None:
    rng = np.random.default_rng(9)
    base = rng.normal(0.1, 1.0, 3000)  # a ratio at which the error of beta matters
    active = 0.02 + 0.3 * base + rng.normal(0, 0.5, 3000)
    series = alpha_series(active, base)
    regression = stats.linregress(base, active)
    assert series.values.mean() == pytest.approx(regression.intercept)
    assert float(series.beta) == pytest.approx(regression.slope)
    error = regression.intercept_stderr
    assert np.sqrt(long_run_variance(series.values) / 2998) == pytest.approx(error, rel=0.05)
    expected = stats.norm.isf(stats.t.sf(regression.intercept / error, 2998))
    assert mean_z_score(series.values, REGRESSION) == pytest.approx(expected, rel=0.05)
    both = alpha_series(np.stack([active, -active], 1), base)
    np.testing.assert_allclose(both.values, np.stack([series.values, -series.values], 1))
    constant = alpha_series(active, np.full(3000, 0.1))
    assert float(constant.beta) == 0.0
    np.testing.assert_array_equal(constant.values, active)


@pytest.mark.slow
def test_alpha_series_allows_for_the_error_of_beta() -> None:
    """Where the base's mean is as large as its deviation, half of the intercept's variance comes from beta."""
    rng = np.random.default_rng(10)
    base = rng.normal(1.0, 1.0, (1500, 200))
    noise = rng.normal(0.0, 1.0, base.shape)
    rows = [alpha_series(own, returns).values for own, returns in zip(noise, base, strict=True)]
    scores = np.array([mean_z_score(row, REGRESSION) for row in rows])
    assert 0.014 <= (scores > 1.96).mean() <= 0.037
    assert np.var([row.mean() for row in rows]) == pytest.approx(2 / 200, rel=0.15)
