"""Metrics against empyrical and closed forms, and at the edge cases where the risk is zero."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.data.built_in_panels import load_sample
from finrl_pod.errors import InputError
from finrl_pod.evaluate import metrics
from finrl_pod.files import to_plain

ROOT = Path(metrics.__file__).parents[2]
PRODUCT = [ROOT / name for name in ("finrl_pod", "envs", "strategies", "app")]


def curve(seed: int, bars: int = 400) -> np.ndarray:
    returns = np.random.default_rng(seed).normal(0.0004, 0.012, bars)
    return 1e6 * np.cumprod(np.concatenate([[1.0], 1.0 + returns]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("periods", [252, 52])
def test_metrics_equal_those_of_empyrical(seed, periods):
    import empyrical

    equity = curve(seed)
    returns = equity[1:] / equity[:-1] - 1
    values = metrics.summary(equity, periods_per_year=periods)
    oracle = {
        "cumulative_return": empyrical.cum_returns_final(returns),
        "annual_return": empyrical.annual_return(returns, annualization=periods),
        "annual_volatility": empyrical.annual_volatility(returns, annualization=periods),
        "sharpe": empyrical.sharpe_ratio(returns, annualization=periods),
        "sortino": empyrical.sortino_ratio(returns, annualization=periods),
        "calmar": empyrical.calmar_ratio(returns, annualization=periods),
        "max_drawdown": empyrical.max_drawdown(returns),
    }
    for name, value in oracle.items():
        assert values[name] == pytest.approx(float(value), rel=1e-9), name


def test_summary_has_exactly_the_declared_metrics():
    assert tuple(metrics.summary(curve(0))) == metrics.METRIC_NAMES


def test_metrics_are_declared_once():
    assert len(set(metrics.METRIC_NAMES)) == len(metrics.METRICS)
    for metric in metrics.METRICS:
        assert metric.explanation[0].islower(), metric.name
        assert metric.definition.endswith("."), metric.name
    for name in ("sortino", "calmar"):
        entry = re.compile(f"\\b{name}\\b")
        files = [path for folder in PRODUCT for path in folder.rglob("*.py") if entry.search(path.read_text("utf-8"))]
        assert [path.name for path in files] == ["metrics.py"]


@given(st.floats(1e-3, 1e6), st.integers(0, 50))
def test_metrics_do_not_depend_on_the_currency(scale, seed):
    equity = curve(seed, 60)
    for f in (metrics.sharpe, metrics.sortino, metrics.calmar, metrics.max_drawdown, metrics.annual_return):
        assert f(equity * scale) == pytest.approx(f(equity), rel=1e-6)


def test_metrics_of_cash_are_zero():
    assert set(metrics.summary(np.full(10, 5.0)).values()) == {0.0}


def test_ratios_without_risk_are_nan_and_null_in_json():
    values = metrics.summary(1.001 ** np.arange(300))
    assert np.isnan(values["sharpe"])
    assert np.isnan(values["sortino"])
    assert np.isnan(values["calmar"])
    assert values["annual_volatility"] == pytest.approx(0.0, abs=1e-9)
    as_json = to_plain(values)
    assert as_json["sharpe"] is None
    assert json.loads(json.dumps(as_json, allow_nan=False))["cumulative_return"] == pytest.approx(1.001**299 - 1)


def test_metrics_after_ruin():
    values = metrics.summary(np.array([100.0, 50.0, -1.0, -1.0]))
    assert values["annual_return"] == -1.0
    assert values["max_drawdown"] == pytest.approx(-1.01)
    assert np.isfinite(values["sharpe"])


def test_turnover_is_one_sided_and_annual():
    # The whole portfolio is sold and bought again at each of 4 decisions, 12 per year: replaced 12 times a year.
    assert metrics.annual_turnover([0.0, 2.0, 2.0, 2.0, 2.0], periods_per_year=12) == pytest.approx(12.0)


def test_costs_are_summed():
    assert metrics.summary(curve(0, 2), costs=np.array([1.0, 2.5, 0.0]))["costs_paid"] == 3.5


@pytest.mark.parametrize("equity", [[], [1.0], [1.0, np.nan], [0.0, 1.0], [np.inf, 1.0]])
def test_invalid_equity_is_refused(equity):
    with pytest.raises(InputError):
        metrics.summary(np.array(equity))


def test_ratios_in_excess_of_cash_agree_with_empyrical():
    import empyrical

    rng = np.random.default_rng(4)
    returns, cash = rng.normal(0.0006, 0.01, 300), np.abs(rng.normal(1e-4, 2e-5, 300))
    equity = 100 * np.cumprod(np.append(1.0, 1 + returns))
    values = metrics.summary(equity, risk_free=cash)
    assert values["sharpe"] == pytest.approx(empyrical.sharpe_ratio(returns, cash))
    assert values["sortino"] == pytest.approx(empyrical.sortino_ratio(returns - cash))
    assert metrics.summary(100 * np.cumprod(np.append(1.0, 1 + cash)), risk_free=cash)["sharpe"] == 0.0
    with pytest.raises(InputError, match="as many returns of cash"):
        metrics.summary(equity, risk_free=cash[:-1])


def test_bars_per_year_of_an_exchange():
    every = np.arange("2024-01-01", "2025-01-01", dtype="datetime64[D]")
    days = every[np.is_busday(every)]
    assert metrics.bars_per_year(days.astype("datetime64[ns]")) == 252
    hours = (days[:, None] + np.arange(14, 21).astype("timedelta64[h]")).ravel()
    assert metrics.bars_per_year(hours) == 7 * 252
    assert metrics.bars_per_year(hours[:-3]) == pytest.approx(7 * 252, rel=0.02)
    assert metrics.bars_per_year(days[-8:]) == 252  # days around Christmas and New Year


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (np.arange("2020-01-01", "2024-01-01", dtype="datetime64[D]"), 365.25),
        (np.arange("2020-01-01", "2024-01-01", 7, dtype="datetime64[D]"), 365.25 / 7),
        (np.arange("2020-01", "2024-01", dtype="datetime64[M]"), 12),
        (np.arange("2024-01-01T00", "2024-03-01T00", 4, dtype="datetime64[h]"), 6 * 365.25),
    ],
)
def test_bars_per_year_of_other_calendars(times, expected):
    assert metrics.bars_per_year(times.astype("datetime64[ns]")) == pytest.approx(expected, rel=0.01)


def test_bars_per_year_of_sessions_across_midnight_utc():
    days = np.arange("2022-01-01", "2024-01-01", dtype="datetime64[D]")
    days = days[np.is_busday(days)]
    opens = days.astype("datetime64[h]") + np.timedelta64(22, "h")  # 22:00 to 03:00
    bars = (opens[:, None] + np.arange(6).astype("timedelta64[h]")).ravel()
    assert metrics.bars_per_year(bars) == pytest.approx(6 * 260.9, rel=0.01)


def test_bars_per_year_of_the_sample():
    times = load_sample().times
    for bars in (5, 21, 63, 252, 1000, len(times)):
        for first in range(0, len(times) - bars + 1, 97):
            assert metrics.bars_per_year(times[first : first + bars]) == 252
