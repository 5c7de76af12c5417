"""Intervals against theory, scipy, empyrical and arch, and their coverage where the truth is known."""

from __future__ import annotations

import empyrical
import numpy as np
import pytest
from arch.bootstrap import StationaryBootstrap
from scipy import stats

from finrl_pod.errors import InputError
from finrl_pod.evaluate import intervals
from finrl_pod.evaluate.intervals import (
    account_intervals,
    binomial_interval,
    block_length,
    overlapping_mean_interval,
    resample_bars,
)


@pytest.mark.parametrize(("k", "n"), [(0, 20), (1, 20), (20, 20), (7, 300)])
def test_binomial_interval_inverts_the_binomial_tails(k, n):
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
def test_invalid_series_are_refused(bad):
    with pytest.raises(InputError):
        overlapping_mean_interval(bad, 1)


def returns_of(seed: int, bars: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).normal(6e-4, 0.011, bars)


def test_values_equal_those_of_empyrical() -> None:
    returns = returns_of(1)
    intervals = account_intervals(returns, draws=20)
    assert intervals.sharpe.value == pytest.approx(empyrical.sharpe_ratio(returns))
    assert intervals.annual_return.value == pytest.approx(empyrical.annual_return(returns))
    assert intervals.max_drawdown.value == pytest.approx(empyrical.max_drawdown(returns))


def test_sharpe_ratio_is_in_excess_of_cash() -> None:
    returns = returns_of(1)
    cash = 2e-4 + 1e-4 * np.sin(np.arange(len(returns)))
    plain, intervals = account_intervals(returns, draws=200), account_intervals(returns, draws=200, risk_free=cash)
    assert intervals.sharpe.value == pytest.approx(empyrical.sharpe_ratio(returns, cash))
    assert intervals.sharpe.high < plain.sharpe.high
    assert (intervals.annual_return, intervals.max_drawdown) == (plain.annual_return, plain.max_drawdown)
    with pytest.raises(InputError, match="1000 returns need as many returns of cash"):
        account_intervals(returns, risk_free=cash[1:])


def test_long_histories_are_drawn_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A year of minute bars would take gigabytes at once. Chunks use other draws from the same distribution."""
    returns = returns_of(2)
    unchunked = account_intervals(returns, draws=1001)
    monkeypatch.setattr(intervals, "MAX_SAMPLED_BARS", 100 * len(returns))
    chunked = account_intervals(returns, draws=1001)
    assert chunked == account_intervals(returns, draws=1001)
    assert chunked.sharpe.value == unchunked.sharpe.value
    for one, other in zip(chunked, unchunked, strict=True):
        assert one != other
        assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=0.15)


def test_intervals_do_not_depend_on_how_many_histories_are_computed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    returns = returns_of(2)
    whole = account_intervals(returns, draws=100)
    monkeypatch.setattr(intervals, "MAX_COMPUTED_BARS", 7 * len(returns))
    assert account_intervals(returns, draws=100) == whole


def test_interval_agrees_with_the_bootstrap_of_arch() -> None:
    returns = returns_of(2)
    intervals = account_intervals(returns, seed=1, draws=3000)

    def sharpe(x: np.ndarray) -> float:
        return float(x.mean() / x.std(ddof=1) * np.sqrt(252))

    other = StationaryBootstrap(block_length(returns), returns, seed=np.random.default_rng(5)).apply(sharpe, 3000)
    assert (intervals.sharpe.low, intervals.sharpe.high) == pytest.approx(np.quantile(other, [0.05, 0.95]), abs=0.06)


def test_blocks_have_the_chosen_mean_length() -> None:
    """A block starts where a resampled bar does not follow the one before."""
    series = np.cumsum(np.random.default_rng(0).normal(size=2000))  # a random walk has long blocks
    index = resample_bars(len(series), block_length(series), 200, np.random.default_rng(0))
    broken = (index[:, 1:] != (index[:, :-1] + 1) % len(series)).mean()
    assert broken == pytest.approx(1 / block_length(series), rel=0.1)


@pytest.mark.slow
def test_sharpe_interval_has_its_nominal_coverage() -> None:
    truth = 6e-4 / 0.011 * np.sqrt(252)
    covered = 0
    for seed in range(150):
        intervals = account_intervals(returns_of(seed, 400), 0.9, seed=seed, draws=200)
        covered += intervals.sharpe.low <= truth <= intervals.sharpe.high
    low, high = binomial_interval(covered, 150, 0.99)
    assert low <= 0.9 <= high


def test_account_intervals_are_ordered_and_reproducible() -> None:
    intervals = account_intervals(returns_of(3), seed=2, draws=200)
    for interval in intervals:
        assert interval.low <= interval.high
    assert intervals.max_drawdown.high <= 0
    assert intervals == account_intervals(returns_of(3), seed=2, draws=200)
    assert intervals != account_intervals(returns_of(3), seed=3, draws=200)


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (np.zeros(10), "at least 20 returns, got 10"),
        (np.zeros(40), "returns that vary"),
        (np.r_[np.zeros(30), np.nan], "bar 30 is nan"),
        (np.r_[np.full(30, 0.01), -1.2], "an account that was ruined has no interval"),
    ],
)
def test_invalid_returns_are_refused(returns: np.ndarray, message: str) -> None:
    with pytest.raises(InputError) as excinfo:
        account_intervals(returns)
    assert message in str(excinfo.value)


def test_blocks_are_geometric_and_wrap_around() -> None:
    rows = resample_bars(200, 8.0, 400, np.random.default_rng(0))
    is_next = np.diff(rows, axis=1) % 200 == 1
    # A bar follows the one before unless a block begins (1 in 8) somewhere other than the next bar.
    assert is_next.mean() == pytest.approx(1 - (1 / 8) * (199 / 200), abs=0.005)
    assert np.bincount(rows.ravel(), minlength=200).min() > 200  # of 400 expected: all bars are equally likely
    assert (resample_bars(5, 1e9, 3, np.random.default_rng(0)).sum(1) == 10).all()  # one block, wrapped


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [1, 5, 21])
def test_interval_of_overlapping_sums_covers_at_its_level(overlap):
    rng = np.random.default_rng(overlap)
    missed = 0
    for _ in range(600):
        sums = np.convolve(rng.normal(size=400 + overlap), np.ones(overlap), "valid")
        low, high = overlapping_mean_interval(sums, overlap)
        missed += not low <= 0 <= high
    assert 0.07 < missed / 600 < 0.14  # 0.1 by construction; its standard error is 0.012


@pytest.mark.slow
def test_interval_of_independent_values_without_overlap_is_that_of_the_central_limit_theorem():
    x = np.random.default_rng(4).normal(0.001, 0.01, 20_000)
    low, high = overlapping_mean_interval(x, 1)
    assert (low + high) / 2 == pytest.approx(x.mean())
    assert high - low == pytest.approx(2 * 1.645 * 0.01 / np.sqrt(20_000), rel=0.1)
