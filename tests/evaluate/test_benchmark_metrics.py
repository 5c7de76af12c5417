"""Metrics against a benchmark: equal to empyrical and scipy, and undefined where a risk is zero."""

from __future__ import annotations

import empyrical
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from finrl_pod.errors import InputError
from finrl_pod.evaluate.active_management import BENCHMARK_METRICS, benchmark_metrics, holdings_metrics, trailing_betas


def returns(seed: int = 0, bars: int = 500) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    base = rng.normal(4e-4, 0.01, bars)
    return 1e-4 + 0.8 * base + rng.normal(0, 0.004, bars), base


def equity(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[1.0], np.cumprod(1 + values)])


def test_metrics_equal_those_of_scipy_and_empyrical() -> None:
    own, base = returns()
    found = benchmark_metrics(equity(own), equity(base))
    line = stats.linregress(base, own)
    assert found["beta"] == pytest.approx(line.slope)
    assert found["alpha"] == pytest.approx(252 * line.intercept)
    assert found["correlation"] == pytest.approx(line.rvalue)
    active = own - base
    assert found["tracking_error"] == pytest.approx(active.std(ddof=1) * np.sqrt(252))
    assert found["information_ratio"] == pytest.approx(active.mean() / active.std(ddof=1) * np.sqrt(252))
    error = np.sqrt(((own - line.intercept - line.slope * base) ** 2).sum() / (len(own) - 2) * 252)
    assert found["residual_tracking_error"] == pytest.approx(error)
    assert np.isnan(found["years_to_show"])  # the information ratio is negative
    better = benchmark_metrics(equity(own + 1e-3), equity(base))
    assert better["years_to_show"] == pytest.approx((2.8 / better["information_ratio"]) ** 2)
    one, other = pd.Series(own), pd.Series(base)
    assert found["beta"] == pytest.approx(empyrical.beta(one, other))
    assert found["up_capture"] == pytest.approx(empyrical.up_capture(one, other))
    assert found["down_capture"] == pytest.approx(empyrical.down_capture(one, other))


def test_cash_is_taken_from_the_regression() -> None:
    own, base = returns(1)
    cash = np.full(len(own), 1e-4)
    found = benchmark_metrics(equity(own), equity(base), 252, cash)
    line = stats.linregress(base - cash, own - cash)
    assert (found["alpha"], found["beta"]) == pytest.approx((252 * line.intercept, line.slope))


def test_undefined_ratios_are_nan() -> None:
    _, base = returns()
    flat, same = np.ones(len(base) + 1), equity(base)
    assert np.isnan(benchmark_metrics(same, flat)["beta"])
    itself = benchmark_metrics(same, same)
    assert itself["beta"] == pytest.approx(1)
    assert itself["tracking_error"] == 0
    assert np.isnan(itself["information_ratio"])
    short = benchmark_metrics(same[:3], same[:3])
    assert list(short) == list(itself) == [metric.name for metric in BENCHMARK_METRICS]
    assert np.isnan(list(short.values())).all()
    with pytest.raises(InputError, match="must cover the same bars"):
        benchmark_metrics(same, same[1:])


def test_trailing_betas_use_the_bars_before() -> None:
    own, base = returns(2)
    young = np.where(np.arange(len(own)) < 400, np.nan, own)
    betas = trailing_betas(np.stack([own, 2 * base, young], 1), base)
    for bar in (130, 300, 499):
        past = slice(max(0, bar - 251), bar + 1)
        assert betas[bar, 0] == pytest.approx(stats.linregress(base[past], own[past]).slope)
        assert betas[bar, 1] == pytest.approx(2)
    assert (betas[:125] == 1).all()
    assert (betas[:, 2] == 1).all()  # 100 returns are less than half of 252


def test_holdings() -> None:
    weights = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    equal = np.full((3, 3), 1 / 3)
    found = holdings_metrics(weights, equal)
    assert found["effective_number"] == pytest.approx(1.5)
    assert found["active_share"] == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert list(holdings_metrics(weights)) == ["effective_number"]
    assert np.isnan(holdings_metrics(np.zeros((2, 3)))["effective_number"])
