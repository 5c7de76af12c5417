"""Drawdowns, monthly returns and tails against pandas, scipy and empyrical; the equity band against theory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from finrl_pod.errors import InputError
from finrl_pod.evaluate import tearsheet
from finrl_pod.types import BacktestResult


def days(bars: int) -> np.ndarray:
    return np.busday_offset(np.datetime64("2019-11-18"), np.arange(bars)).astype("datetime64[ns]")


def curve(seed: int = 0, bars: int = 500) -> np.ndarray:
    return 1e5 * np.exp(np.random.default_rng(seed).normal(3e-4, 0.01, bars).cumsum())


def test_drawdowns_of_a_worked_example() -> None:
    equity = [100, 110, 99, 105, 110, 120, 60, 90]
    times = days(8)
    deep, shallow = tearsheet.drawdowns(times, equity)
    dates = [str(day) for day in times.astype("datetime64[D]")]
    assert deep == tearsheet.Drawdown(dates[5], dates[6], None, pytest.approx(-0.5), 2)
    assert shallow == tearsheet.Drawdown(dates[1], dates[2], dates[4], pytest.approx(-0.1), 3)
    assert tearsheet.longest_drawdown(times, equity) == 3
    assert tearsheet.drawdowns(times, np.arange(1.0, 9.0)) == []
    assert tearsheet.longest_drawdown(times, np.arange(1.0, 9.0)) == 0


def test_deepest_drawdown_equals_the_metric() -> None:
    equity = curve(3)
    worst = tearsheet.drawdowns(days(500), equity)
    assert worst[0].depth == pytest.approx((equity / np.maximum.accumulate(equity) - 1).min())
    assert [d.depth for d in worst] == sorted(d.depth for d in worst)
    assert len(worst) == tearsheet.LISTED_DRAWDOWNS


def test_monthly_returns_agree_with_pandas_and_compound_to_the_total() -> None:
    equity, times = curve(1), days(500)
    actual = tearsheet.monthly_returns(times, equity)
    month_ends = pd.Series(equity, pd.DatetimeIndex(times)).resample("ME").last()
    expected = month_ends / month_ends.shift(1).fillna(equity[0]) - 1
    flat = [value for months in actual.values() for value in months.values()]
    assert flat == pytest.approx(list(expected))
    assert list(actual["2020"]) == [str(month) for month in range(1, 13)]
    assert np.prod([1 + value for value in flat]) == pytest.approx(equity[-1] / equity[0])
    year_ends = pd.Series(equity, pd.DatetimeIndex(times)).resample("YE").last()
    years = year_ends / year_ends.shift(1).fillna(equity[0]) - 1
    assert [tearsheet.compound_return(months) for months in actual.values()] == pytest.approx(list(years))


def test_rolling_sharpe_agrees_with_pandas() -> None:
    equity = curve(2)
    returns = pd.Series(equity).pct_change()
    cash = np.full(499, 1e-4)
    for risk_free in (None, cash):
        excess = returns - (0 if risk_free is None else 1e-4)
        expected = excess.rolling(126).mean() / excess.rolling(126).std() * 252**0.5
        np.testing.assert_allclose(tearsheet.rolling_sharpe(equity, risk_free), expected, rtol=1e-7)
    assert np.isnan(tearsheet.rolling_sharpe(equity[:50])).all()
    assert np.isnan(tearsheet.rolling_sharpe(np.ones(300))).all()


def test_rolling_volatility_and_beta_agree_with_plain_numpy() -> None:
    equity, base = curve(2), curve(3)
    returns, base_returns = (np.diff(x) / x[:-1] for x in (equity, base))
    volatility = tearsheet.rolling_volatility(equity)
    alpha, beta = tearsheet.rolling_alpha_beta(equity, base)
    assert np.isnan(volatility[:126]).all()
    assert np.isnan(beta[:126]).all()
    for t in (126, 200, 499):
        window = slice(t - 126, t)
        slope, intercept = np.polyfit(base_returns[window], returns[window], 1)
        assert (beta[t], alpha[t]) == pytest.approx((slope, 252 * intercept))
        assert volatility[t] == pytest.approx(returns[window].std(ddof=1) * 252**0.5)


def test_moments_and_tails_agree_with_scipy_and_empyrical() -> None:
    import empyrical

    equity = curve(5)
    returns = equity[1:] / equity[:-1] - 1
    actual = tearsheet.return_distribution(equity)
    assert actual["skewness"] == pytest.approx(stats.skew(returns))
    assert actual["kurtosis"] == pytest.approx(stats.kurtosis(returns, fisher=False))
    assert actual["value_at_risk"] == pytest.approx(empyrical.value_at_risk(returns, 0.05))
    assert actual["expected_shortfall"] == pytest.approx(empyrical.conditional_value_at_risk(returns, 0.05), rel=0.02)
    assert actual["deviation"] == pytest.approx(returns.std(ddof=1))
    assert (actual["worst"], actual["best"]) == (returns.min(), returns.max())
    flat = tearsheet.return_distribution(np.full(30, 5.0))
    assert (flat["skewness"], flat["mean"]) == (None, 0.0)


def test_cost_summary_by_kind_and_drag() -> None:
    ones = np.ones(253)
    result = BacktestResult("x", days(253), ("A",), 100 * ones, ones[:, None], 0 * ones, 0.01 * ones, {})
    assert tearsheet.cost_summary(result)["parts"] == {"commission": pytest.approx(2.53)}
    assert tearsheet.cost_summary(result)["drag"] == pytest.approx(0.0253)


def test_equity_band_starts_at_one_is_reproducible_and_covers_a_lognormal_walk() -> None:
    equity = curve(7, 1000)
    band = tearsheet.equity_band(equity, seed=1)
    repeated = tearsheet.equity_band(equity, seed=1)
    assert band == repeated
    assert (band["places"][0], band["places"][-1]) == (0, 999)
    assert (band["low"][0], band["high"][0]) == (1.0, 1.0)
    assert all(low <= high for low, high in zip(band["low"], band["high"], strict=True))
    # Independent normal returns: the band at the end is the normal approximation around the sample mean.
    r = np.diff(np.log(equity))
    half = stats.norm.ppf(0.95) * r.std() * 999**0.5
    assert np.log(band["low"][-1]) == pytest.approx(r.sum() - half, abs=0.15 * half)
    assert np.log(band["high"][-1]) == pytest.approx(r.sum() + half, abs=0.15 * half)
    with pytest.raises(InputError, match="ruined"):
        tearsheet.equity_band([1.0, 0.0, 1.0])


def test_metrics_of_a_tear_sheet_equal_those_of_pandas_and_empyrical() -> None:
    import empyrical

    times, equity = days(500), curve(5)
    cash = np.full(499, 1e-4)
    weights = np.zeros((500, 2))
    weights[100:] = (0.8, -0.4)
    zeros = np.zeros(500)
    result = BacktestResult("own", times, ("A", "B"), equity, weights, zeros, zeros, {}, risk_free=cash)
    found = tearsheet.tear_sheet_metrics(result)
    assert tuple(found) == tuple(metric.name for metric in tearsheet.TEAR_SHEET_METRICS)
    series = pd.Series(equity, pd.DatetimeIndex(times))
    months = series.resample("ME").last().pct_change()
    months.iloc[0] = series.resample("ME").last().iloc[0] / equity[0] - 1
    assert (found["best_month"], found["worst_month"]) == pytest.approx((months.max(), months.min()))
    assert found["winning_months"] == pytest.approx((months > 0).mean())
    last = series.index[-1]
    assert found["month_to_date"] == pytest.approx(months.iloc[-1])
    assert found["year_to_date"] == pytest.approx(series.iloc[-1] / series[: str(last.year - 1)].iloc[-1] - 1)
    year_ago = series[: str(last - pd.DateOffset(years=1))].iloc[-1]
    assert found["annual_return_1_year"] == pytest.approx(series.iloc[-1] / year_ago - 1)
    assert np.isnan(found["annual_return_3_years"])
    returns = series.pct_change().dropna()
    assert found["omega"] == pytest.approx(empyrical.omega_ratio(returns, risk_free=1e-4))
    assert found["tail_ratio"] == pytest.approx(empyrical.tail_ratio(returns))
    assert (found["time_in_market"], found["gross_exposure"]) == pytest.approx((0.8, 0.8 * 1.2))
