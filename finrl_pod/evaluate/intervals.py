"""Bootstrap intervals of what an account earned and risked: Sharpe ratio, return a year, deepest drawdown.

The stationary bootstrap (Politis and Romano 1994) keeps the order of returns within blocks, so that a drawdown, which
lives on runs of bad days, is resampled with them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import BARS_PER_YEAR
from finrl_pod.evaluate.sharpe import series
from finrl_pod.evaluate.statistics import DRAWS, MIN_BARS, block_length
from finrl_pod.types import Floats

AT_ONCE = 2**25  # bars of histories: a quarter of a GiB for each array of them


class Interval(NamedTuple):
    """The value of the sample itself, and both ends of a percentile interval."""

    value: float
    low: float
    high: float


class Intervals(NamedTuple):
    """sharpe: a year. annual_return: compound. max_drawdown: 0 or negative."""

    sharpe: Interval
    annual_return: Interval
    max_drawdown: Interval


def account_intervals(
    returns: ArrayLike,
    level: float = 0.90,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    periods_per_year: float = BARS_PER_YEAR,
    risk_free: ArrayLike | None = None,
) -> Intervals:
    """Intervals of simple returns [T], all three from the same resampled histories.

    risk_free: [T], what cash earned; the Sharpe ratio is of what exceeds it on the same days.

    The drawdown of a resampled history is biased towards the middle: its interval says what other orders of the same
    days would have done. Raises InputError: fewer than `MIN_BARS` returns, NaN, constant, one of -100% or less, a
    level outside (0, 1).
    """
    values = series(returns, MIN_BARS, "a bootstrap interval")
    if not 0 < level < 1:
        raise InputError(f"the level of an interval must lie between 0 and 1, got {level}")
    if values.min() <= -1:
        raise InputError(f"a return of {values.min():.0%} leaves nothing: an account that was ruined has no interval")
    cash = np.zeros_like(values) if risk_free is None else np.asarray(risk_free, dtype=np.float64)
    if cash.shape != values.shape:
        raise InputError(f"{len(values)} returns need as many returns of cash, got {cash.shape}")
    if draws < 1:
        raise InputError(f"a bootstrap needs at least one draw, got {draws}")
    rng, parts, most = np.random.default_rng(seed), [], max(AT_ONCE // len(values), 1)
    for first in range(0, draws, most):
        days = resampled_days(values, rng, min(most, draws - first))
        parts.append(_measures(values[days], cash[days], periods_per_year))
    samples = np.concatenate(parts)
    own = _measures(values[None], cash[None], periods_per_year)
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Intervals(*(Interval(float(own[0, i]), float(low[i]), float(high[i])) for i in range(3)))


def resampled_days(returns: Floats, rng: np.random.Generator, draws: int) -> NDArray[np.int64]:
    """[draws, T] days of histories by the stationary bootstrap; each block wraps around at the end."""
    bars = len(returns)
    fresh = rng.random((draws, bars)) < 1 / block_length(returns)
    fresh[:, 0] = True
    starts = rng.integers(0, bars, (draws, bars))
    bar = np.arange(bars)
    begun = np.maximum.accumulate(np.where(fresh, bar, 0), axis=1)  # where each bar's block began
    return np.asarray((np.take_along_axis(starts, begun, 1) + bar - begun) % bars)


def _measures(returns: Floats, cash: Floats, periods_per_year: float) -> Floats:
    """[D, T] -> [D, 3]."""
    excess = returns - cash
    deviation = excess.std(1, ddof=1)
    still = deviation <= 0
    sharpe = np.where(still, 0.0, excess.mean(1) / np.where(still, 1.0, deviation)) * np.sqrt(periods_per_year)
    log_equity = np.cumsum(np.log1p(returns), axis=1)
    growth = np.expm1(log_equity[:, -1] * periods_per_year / returns.shape[1])
    peak = np.maximum(np.maximum.accumulate(log_equity, axis=1), 0.0)
    fall = np.expm1((log_equity - peak).min(1))
    return np.stack([sharpe, growth, np.minimum(fall, 0.0)], 1)
