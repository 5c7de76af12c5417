"""Intervals of Sharpe ratio, return and drawdown: own values against empyrical, resampling against arch, coverage."""

from __future__ import annotations

import empyrical
import numpy as np
import pytest
from arch.bootstrap import StationaryBootstrap

from finrl_pod.errors import InputError
from finrl_pod.evaluate import intervals
from finrl_pod.evaluate.intervals import account_intervals, resampled_days
from finrl_pod.evaluate.statistics import binomial_interval, block_length


def returns_of(seed: int, bars: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).normal(6e-4, 0.011, bars)


def test_the_values_are_those_of_empyrical() -> None:
    returns = returns_of(1)
    found = account_intervals(returns, draws=20)
    assert found.sharpe.value == pytest.approx(empyrical.sharpe_ratio(returns))
    assert found.annual_return.value == pytest.approx(empyrical.annual_return(returns))
    assert found.max_drawdown.value == pytest.approx(empyrical.max_drawdown(returns))


def test_a_sharpe_ratio_is_of_what_exceeds_cash_on_the_same_days() -> None:
    returns = returns_of(1)
    cash = 2e-4 + 1e-4 * np.sin(np.arange(len(returns)))
    plain, found = account_intervals(returns, draws=200), account_intervals(returns, draws=200, risk_free=cash)
    assert found.sharpe.value == pytest.approx(empyrical.sharpe_ratio(returns, cash))
    assert found.sharpe.high < plain.sharpe.high
    assert (found.annual_return, found.max_drawdown) == (plain.annual_return, plain.max_drawdown)
    with pytest.raises(InputError, match="1000 returns need as many returns of cash"):
        account_intervals(returns, risk_free=cash[1:])


def test_long_histories_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A year of minutes would take gigabytes at once. Parts have draws of their own, and the same distribution."""
    returns = returns_of(2)
    whole = account_intervals(returns, draws=1001)
    monkeypatch.setattr(intervals, "AT_ONCE", 100 * len(returns))
    parts = account_intervals(returns, draws=1001)
    assert parts == account_intervals(returns, draws=1001)
    assert parts.sharpe.value == whole.sharpe.value
    for one, other in zip(parts, whole, strict=True):
        assert one != other
        assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=0.15)


def test_the_ends_are_those_of_another_bootstrap() -> None:
    returns = returns_of(2)
    found = account_intervals(returns, seed=1, draws=3000)

    def sharpe(x: np.ndarray) -> float:
        return float(x.mean() / x.std(ddof=1) * np.sqrt(252))

    other = StationaryBootstrap(block_length(returns), returns, seed=np.random.default_rng(5)).apply(sharpe, 3000)
    assert (found.sharpe.low, found.sharpe.high) == pytest.approx(np.quantile(other, [0.05, 0.95]), abs=0.06)


def test_blocks_have_the_length_that_was_asked_for() -> None:
    """Where a resampled bar is not the successor of the one before, a block began."""
    series = np.cumsum(np.random.default_rng(0).normal(size=2000))  # a walk: its blocks are long
    index = resampled_days(series, np.random.default_rng(0), 200)
    broken = (index[:, 1:] != (index[:, :-1] + 1) % len(series)).mean()
    assert broken == pytest.approx(1 / block_length(series), rel=0.1)


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    truth = 6e-4 / 0.011 * np.sqrt(252)
    hits = 0
    for seed in range(150):
        found = account_intervals(returns_of(seed, 400), 0.9, seed=seed, draws=200)
        hits += found.sharpe.low <= truth <= found.sharpe.high
    low, high = binomial_interval(hits, 150, 0.99)
    assert low <= 0.9 <= high


def test_order_and_seed() -> None:
    found = account_intervals(returns_of(3), seed=2, draws=200)
    for interval in found:
        assert interval.low <= interval.high
    assert found.max_drawdown.high <= 0
    assert found == account_intervals(returns_of(3), seed=2, draws=200)
    assert found != account_intervals(returns_of(3), seed=3, draws=200)


@pytest.mark.parametrize(
    ("returns", "level", "words"),
    [
        (np.zeros(10), 0.9, "needs 20 returns at least, got 10"),
        (np.zeros(40), 0.9, "needs returns that differ"),
        (np.r_[np.zeros(30), np.nan], 0.9, "that of bar 30 is nan"),
        (np.r_[np.full(30, 0.01), -1.2], 0.9, "an account that was ruined has no interval"),
        (np.arange(30.0), 1.0, "must lie between 0 and 1, got 1.0"),
    ],
)
def test_what_has_no_interval_is_refused(returns: np.ndarray, level: float, words: str) -> None:
    with pytest.raises(InputError) as caught:
        account_intervals(returns, level)
    assert words in str(caught.value)
