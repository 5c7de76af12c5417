"""Statistics of active returns and weights against plain formulas, numpy regressions and theory."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from finrl_pod.errors import InputError
from finrl_pod.evaluate.active_management import (
    active_share,
    active_statistics,
    annual_mean,
    effective_number,
    mean_absolute_tilt,
    transfer_coefficient,
    years_to_show,
)


def pair(seed: int = 0, bars: int = 1500, alpha: float = 2e-4, beta: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """Returns of a portfolio and its base."""
    rng = np.random.default_rng(seed)
    base = rng.normal(4e-4, 0.012, bars)
    return alpha + beta * base + rng.normal(0, 0.004, bars), base


def test_values_equal_those_of_a_regression_and_plain_ratios():
    portfolio, base = pair(alpha=6e-4)
    cash = np.full(len(portfolio), 1e-5)
    result = active_statistics(portfolio, base, seed=1, draws=200, periods_per_year=250, risk_free=cash)
    regression = stats.linregress(base - cash, portfolio - cash)
    active = portfolio - base
    assert result.beta.value == pytest.approx(regression.slope, rel=1e-10)
    assert result.alpha.value == pytest.approx(250 * regression.intercept, rel=1e-10)
    ratio = active.mean() / active.std(ddof=1) * 250**0.5
    assert result.information_ratio.value == pytest.approx(ratio, rel=1e-10)
    assert result.tracking_error == pytest.approx(active.std(ddof=1) * 250**0.5, rel=1e-10)
    sharpes = [(x - cash).mean() / (x - cash).std(ddof=1) * 250**0.5 for x in (portfolio, base)]
    assert result.sharpe_difference.value == pytest.approx(sharpes[0] - sharpes[1], rel=1e-10)
    assert result.years_to_show == pytest.approx((2.8 / ratio) ** 2)


@pytest.mark.slow
def test_a_mean_of_few_bars_has_no_interval():
    value, low, high = annual_mean(np.arange(19.0), 0.9, 252)
    assert value == pytest.approx(252 * 9)
    assert np.isnan([low, high]).all()
    assert annual_mean(np.full(20, 0.5), 0.9, 2) == (1, 1, 1)


def test_intervals_follow_theory_for_independent_returns():
    portfolio, base = pair(3, bars=4000)
    result = active_statistics(portfolio, base, 0.90, seed=2, draws=4000)
    regression = stats.linregress(base, portfolio)
    z = stats.norm.ppf(0.95)
    for interval, error in ((result.beta, regression.stderr), (result.alpha, 252 * regression.intercept_stderr)):
        assert interval.low == pytest.approx(interval.value - z * error, abs=0.25 * z * error)
        assert interval.high == pytest.approx(interval.value + z * error, abs=0.25 * z * error)
    # The variance of an information ratio of T independent returns is (1 + IR^2 / 2) / T, in units of a bar.
    error = np.sqrt((1 + (result.information_ratio.value / 252**0.5) ** 2 / 2) / 4000 * 252)
    assert result.information_ratio.high - result.information_ratio.low == pytest.approx(2 * z * error, rel=0.15)


@pytest.mark.slow
def test_sharpe_difference_interval_has_its_nominal_coverage():
    covered = 0
    for seed in range(100):
        portfolio, base = pair(seed, bars=750, alpha=0.0, beta=1.0)
        spread = np.sqrt(0.012**2 + 0.004**2)
        truth = (4e-4 / spread - 4e-4 / 0.012) * 252**0.5
        interval = active_statistics(portfolio, base, 0.90, seed=seed, draws=300).sharpe_difference
        covered += interval.low <= truth <= interval.high
    assert 80 <= covered <= 98  # 90 expected, standard error 3


def test_bars_of_both_accounts_are_resampled_together():
    portfolio, base = pair(bars=800)
    paired = active_statistics(portfolio, base, seed=1, draws=500).sharpe_difference
    shuffled = np.random.default_rng(9).permutation(base)
    unpaired = active_statistics(portfolio, shuffled, seed=1, draws=500).sharpe_difference
    assert paired.value == pytest.approx(unpaired.value)
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_active_statistics_of_the_base_itself_are_zero():
    portfolio, _ = pair(bars=60)
    result = active_statistics(portfolio, portfolio.copy(), draws=50)
    assert result.sharpe_difference == (0.0, 0.0, 0.0)
    assert result.information_ratio == (0.0, 0.0, 0.0)
    assert result.beta == pytest.approx((1.0, 1.0, 1.0))
    assert (result.tracking_error, result.years_to_show) == (0.0, None)


def test_an_account_in_cash_has_a_sharpe_ratio_of_zero():
    _, base = pair(bars=60)
    result = active_statistics(np.zeros(60), base, draws=50)
    assert result.sharpe_difference.value == pytest.approx(-base.mean() / base.std(ddof=1) * 252**0.5)
    assert (result.beta.value, result.alpha.value) == (pytest.approx(0.0), pytest.approx(0.0, abs=1e-12))
    assert active_statistics(base, np.zeros(60), draws=50).beta.value == 0.0


def test_intervals_are_reproducible_by_seed():
    portfolio, base = pair(bars=100)
    assert active_statistics(portfolio, base, seed=4, draws=50) == active_statistics(portfolio, base, seed=4, draws=50)
    assert active_statistics(portfolio, base, seed=4, draws=50) != active_statistics(portfolio, base, seed=5, draws=50)


def test_years_until_significance():
    assert years_to_show(0.5) == pytest.approx(31.36)
    power = stats.norm.sf(1.96 - 0.5 * 31.36**0.5)  # of the z-score IR sqrt(years)
    assert power == pytest.approx(0.8, abs=1e-3)
    assert years_to_show(0.0) is None
    assert years_to_show(-0.3) is None


def test_effective_number():
    weights = np.array([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0], [0.6, 0.2, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert effective_number(weights) == pytest.approx([4.0, 2.0, 0.64 / 0.4, np.nan], nan_ok=True)


def test_active_share():
    base = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    portfolio = np.array([[0.5, 0.5, 0.0], [0.2, 0.4, 0.4], [1.0, 0.0, 0.0]])
    assert active_share(portfolio, base) == pytest.approx([0.0, 0.4, np.nan], nan_ok=True)
    with pytest.raises(InputError, match="same bars and assets"):
        active_share(portfolio, base[:2])


def test_mean_absolute_tilt_is_in_log_units():
    base = np.full((2, 2), 0.5)
    portfolio = np.array([[0.5 * np.e, 0.5], [0.5 / np.e, 0.0]])  # 1, 0, 1; the untradable asset is excluded
    assert mean_absolute_tilt(portfolio, base) == pytest.approx(2 / 3)
    assert np.isnan(mean_absolute_tilt(np.zeros((2, 2)), base))


def test_transfer_coefficient_is_the_mean_correlation_across_assets():
    rng = np.random.default_rng(1)
    target, noise = rng.normal(size=(2, 50, 20))
    held = 0.3 * target + 0.2 * noise
    expected = np.mean([np.corrcoef(x, y)[0, 1] for x, y in zip(target, held, strict=True)])
    assert transfer_coefficient(target, held) == pytest.approx(expected, rel=1e-12)
    assert transfer_coefficient(target, 0.05 * target + 1e-3) == pytest.approx(1.0)


def test_transfer_coefficient_ignores_missing_assets_and_bars():
    rng = np.random.default_rng(2)
    target, held = rng.normal(size=(2, 3, 6))
    expected = np.mean([np.corrcoef(target[0, :4], held[0, :4])[0, 1], np.corrcoef(target[2], held[2])[0, 1]])
    target[0, 4:], held[1] = np.nan, 0.0
    assert transfer_coefficient(target, held) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(transfer_coefficient(target, np.zeros((3, 6))))
