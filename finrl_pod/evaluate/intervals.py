"""Confidence intervals: bootstrap intervals of Sharpe ratio, return and drawdown, and of a proportion.

Returns are resampled in blocks by the stationary bootstrap (Politis and Romano 1994), with the mean block length chosen
from the data (Politis and White 2004, corrected 2009; from `arch`): blocks keep runs of bad days together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import BARS_PER_YEAR, check_returns
from finrl_pod.prices import Floats

DRAWS = 2_000  # bootstrap samples
MIN_BARS = 20  # below this neither a block length nor an interval is meaningful
MAX_SAMPLED_BARS = 2**22  # drawn at a time; another number gives other draws
MAX_COMPUTED_BARS = 2**18  # whose statistics are computed at a time: 2 MiB for each array


class Interval(NamedTuple):
    """A statistic of the sample and the two ends of its percentile interval."""

    value: float
    low: float
    high: float


class AccountIntervals(NamedTuple):
    """sharpe: annualised. annual_return: compound. max_drawdown: 0 or negative."""

    sharpe: Interval
    annual_return: Interval
    max_drawdown: Interval


def overlapping_mean_interval(series: ArrayLike, overlap: int, level: float = 0.90) -> tuple[float, float]:
    """Two-sided interval (low, high) of the mean of a series [T] of which each value spans the `overlap` bars after it.

    The long-run variance is the mean square of the series' first B cosine transforms, and the interval has quantiles of
    Student's t with B degrees of freedom: the estimator and B = 0.4 T^(2/3) of Lazarus, Lewis, Stock and Watson (2018).
    Returns over h bars that overlap have no spectrum to measure near 1/h cycles a bar, so B is at most T / 2h: half of
    that frequency. A bootstrap whose blocks are shorter than the overlap gives intervals that are too narrow.

    overlap: bars. Raises InputError for fewer than `MIN_BARS` values and values that are not finite.
    """
    from scipy.stats import t as student

    values = _checked_series(series)
    bars = len(values)
    terms = max(1, min(int(0.4 * bars ** (2 / 3)), bars // (2 * overlap)))
    cycles = np.arange(1, terms + 1)[:, None] * (np.arange(bars) + 0.5) / bars  # [B, T]
    transforms = np.sqrt(2 / bars) * (np.cos(np.pi * cycles) @ values)
    margin = student.ppf((1 + level) / 2, terms) * np.sqrt(np.square(transforms).mean() / bars)
    return float(values.mean() - margin), float(values.mean() + margin)


def account_intervals(
    returns: ArrayLike,
    level: float = 0.90,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    periods_per_year: float = BARS_PER_YEAR,
    risk_free: ArrayLike | None = None,
) -> AccountIntervals:
    """Percentile intervals of Sharpe ratio, annual return and maximum drawdown of simple returns [T].

    All three come from the same resampled histories. risk_free: [T], return of cash; the Sharpe ratio is in excess of
    it. The drawdown of a resampled history is biased towards the middle: its interval shows what other orders of the
    same days would have done. Raises InputError for fewer than `MIN_BARS` returns, NaN, constant returns, and a return
    of -100% or less.
    """
    values = check_returns(returns, MIN_BARS, "a bootstrap interval")
    if values.min() <= -1:
        raise InputError(f"an account that was ruined has no interval: one return is {values.min():.0%}")
    cash = np.zeros_like(values) if risk_free is None else np.asarray(risk_free, dtype=np.float64)
    if cash.shape != values.shape:
        raise InputError(f"{len(values)} returns need as many returns of cash, got {cash.shape}")
    samples = bootstrap_statistics(
        lambda bars: _account_statistics(values[bars], cash[bars], periods_per_year),
        *(len(values), block_length(values), draws, np.random.default_rng(seed)),
    )
    account_values = _account_statistics(values[None], cash[None], periods_per_year)
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return AccountIntervals(*(Interval(float(account_values[0, i]), float(low[i]), float(high[i])) for i in range(3)))


def binomial_interval(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval of a proportion: k successes in n trials."""
    from scipy.stats import binomtest

    interval = binomtest(k, n).proportion_ci(confidence_level=level, method="exact")
    return float(interval.low), float(interval.high)


# ---------------------------------------------------------------------- stationary bootstrap


def block_length(series: ArrayLike) -> float:
    """Mean block length in bars for the stationary bootstrap of the mean of a series [T]; at least 1."""
    from arch.bootstrap import optimal_block_length

    values = _checked_series(series)
    if np.ptp(values) == 0:
        return 1.0
    with np.errstate(divide="ignore", invalid="ignore"):  # a series with long flat parts has no autocorrelation
        length = float(optimal_block_length(values)["stationary"].iloc[0])
    return max(length, 1.0) if np.isfinite(length) else float(len(values)) ** (1 / 3)


def bootstrap_statistics(
    statistics: Callable[[NDArray[np.int64]], Floats], bars: int, block: float, draws: int, rng: np.random.Generator
) -> Floats:
    """Statistics [draws, ...] of histories of a stationary bootstrap, a few histories at a time.

    statistics: function of bar indices [D, bars] that returns statistics [D, ...] and treats each row by itself. block:
    argument of `resample_bars`.
    """
    sampled_draws, computed_draws = (max(limit // bars, 1) for limit in (MAX_SAMPLED_BARS, MAX_COMPUTED_BARS))
    chunks = []
    for start in range(0, draws, sampled_draws):
        index = resample_bars(bars, block, min(sampled_draws, draws - start), rng)
        chunks += [statistics(index[row : row + computed_draws]) for row in range(0, len(index), computed_draws)]
    return np.concatenate(chunks)


def resample_bars(bars: int, block: float, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Bar indices [draws, bars] of a stationary bootstrap.

    Blocks start anywhere, have a geometric length of `block` bars on average (at least 1), and wrap around the end.
    """
    starts_block = rng.random((draws, bars)) < 1 / max(block, 1.0)
    starts_block[:, 0] = True
    index: NDArray[np.int64] = rng.integers(0, bars, (draws, bars))  # where the block of each bar would start
    bar_numbers = np.arange(bars)
    for begins, row in zip(starts_block, index, strict=True):  # in place: a history may be long
        block_start = np.maximum.accumulate(np.where(begins, bar_numbers, 0))  # of the block of each bar
        row[:] = (row[block_start] + bar_numbers - block_start) % bars
    return index


def _checked_series(series: ArrayLike) -> Floats:
    values = np.asarray(series, dtype=np.float64)
    if values.ndim != 1 or len(values) < MIN_BARS:
        raise InputError(f"a bootstrap needs one series of at least {MIN_BARS} bars, got shape {values.shape}")
    if not np.isfinite(values).all():
        bar = int(np.argmin(np.isfinite(values)))
        raise InputError(f"log returns must be finite, bar {bar} is {values[bar]}")
    return values


def _account_statistics(returns: Floats, cash: Floats, periods_per_year: float) -> Floats:
    """Sharpe ratio, annual return and maximum drawdown [D, 3] of D histories of returns [D, T]."""
    excess = returns - cash
    deviation = excess.std(1, ddof=1)
    still = deviation <= 0
    sharpe = np.where(still, 0.0, excess.mean(1) / np.where(still, 1.0, deviation)) * np.sqrt(periods_per_year)
    log_equity = np.cumsum(np.log1p(returns), axis=1)
    growth = np.expm1(log_equity[:, -1] * periods_per_year / returns.shape[1])
    peak = np.maximum(np.maximum.accumulate(log_equity, axis=1), 0.0)
    fall = np.expm1((log_equity - peak).min(1))
    return np.stack([sharpe, growth, np.minimum(fall, 0.0)], 1)


# ---------------------------------------------------------------------- several seeds


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores; the lowest and the highest quarter (rounded down) are left out."""
    values = np.sort(_checked_scores(scores), axis=None)
    cut = values.size // 4
    return float(values[cut : values.size - cut].mean())


def difference_interval(
    scores: ArrayLike, other_scores: ArrayLike, level: float = 0.95, *, seed: int = 0, draws: int = DRAWS
) -> Interval:
    """Difference of two interquartile means, with its interval.

    scores: [runs, tasks]; other_scores: [other runs, tasks]. The runs of each task are resampled on both sides. Raises
    InputError for fewer than two runs, NaN, and if the numbers of tasks differ.
    """
    ours, theirs = _checked_scores(scores), _checked_scores(other_scores)
    if ours.shape[1] != theirs.shape[1]:
        raise InputError(f"both sides must have run the same tasks, got {ours.shape[1]} and {theirs.shape[1]}")
    if (runs := min(len(ours), len(theirs))) < 2:
        raise InputError(f"an interval over seeds needs at least two runs, got {runs}")
    rng = np.random.default_rng(seed)
    samples = [
        interquartile_mean(_resample(ours, rng)) - interquartile_mean(_resample(theirs, rng)) for _ in range(draws)
    ]
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return Interval(interquartile_mean(ours) - interquartile_mean(theirs), float(low), float(high))


def _resample(values: Floats, rng: np.random.Generator) -> Floats:
    """Scores [R, K] with the runs of each task drawn with replacement."""
    rows = rng.integers(0, len(values), values.shape)
    return np.asarray(np.take_along_axis(values, rows, axis=0), dtype=np.float64)


def _checked_scores(scores: ArrayLike) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not values.size:
        raise InputError(f"scores must be a non-empty array of runs x tasks, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise InputError(
            f"scores must be finite, run {int(np.argwhere(~np.isfinite(values))[0][0])} has one that is not"
        )
    return values
