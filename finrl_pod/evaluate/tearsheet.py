"""What a tear sheet shows of one account: drawdowns, months, rolling ratios, the returns' distribution, costs.

Pure functions of equity curves and of what was recorded with them; plain values out, as JSON holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import BARS_PER_YEAR, NO_RISK, bars_per_year, drawdown, excess_returns, simple_returns
from finrl_pod.random import key
from finrl_pod.types import BacktestResult, Floats, Times

WORST = 5  # drawdowns listed
TAIL = 0.05  # of the returns: the level of value at risk
ROLLING_BARS = 126  # bars, half a year of days
MIN_BAND_RETURNS = 20  # returns, for a band
BAND_LEVEL, BAND_DRAWS, BAND_MARKS = 0.90, 1_000, 200


@dataclass(frozen=True)
class Drawdown:
    """A fall from a peak. depth: 0 to -1. recovered: the first bar back at the peak's equity, None where there is none.
    bars: from the peak to the recovery, or to the end."""

    peak: str
    trough: str
    recovered: str | None
    depth: float
    bars: int


def drawdowns(times: Times, equity: ArrayLike, most: int = WORST) -> list[Drawdown]:
    """The deepest drawdowns, deepest first. times, equity: [T]."""
    falls = drawdown(equity)
    days = times.astype("datetime64[D]")
    below = np.concatenate([[False], falls < 0, [False]])
    starts = np.flatnonzero(below[1:] & ~below[:-1])  # first bar below a peak
    ends = np.flatnonzero(below[:-1] & ~below[1:])  # first bar back at it, T where there is none
    found = []
    for start, end in zip(starts, ends, strict=True):
        trough = start + int(np.argmin(falls[start:end]))
        back = end < len(days)
        found.append(
            Drawdown(
                str(days[start - 1]),
                str(days[trough]),
                str(days[end]) if back else None,
                float(falls[trough]),
                int((end if back else len(days) - 1) - (start - 1)),
            )
        )
    return sorted(found, key=lambda one: one.depth)[:most]


def longest_drawdown(times: Times, equity: ArrayLike) -> int:
    """Bars of the longest time between a peak and its recovery, or the end; 0 for a curve that never falls."""
    return max((one.bars for one in drawdowns(times, equity, most=len(times))), default=0)


def monthly_returns(times: Times, equity: ArrayLike) -> dict[str, dict[str, float]]:
    """{year: {month "1".."12": simple return}}, each month's last mark over that of the month before (at first: the
    first mark). The first and the last month may be parts."""
    marks = np.asarray(equity, dtype=np.float64)
    months = times.astype("datetime64[M]").astype(np.int64)
    lasts = np.append(np.flatnonzero(np.diff(months)), len(months) - 1)
    ends = np.concatenate([marks[:1], marks[lasts]])
    table: dict[str, dict[str, float]] = {}
    for month, before, after in zip(months[lasts], ends[:-1], ends[1:], strict=True):
        year, place = divmod(int(month), 12)
        table.setdefault(str(1970 + year), {})[str(place + 1)] = float(after / before - 1) if before > 0 else 0.0
    return table


def yearly_return(months: Mapping[str, float]) -> float:
    """Return of a year whose months, or those of them that were traded, returned these: compounded."""
    return float(np.prod([1 + value for value in months.values()]) - 1)


def rolling_sharpe(
    equity: ArrayLike, risk_free: ArrayLike | None = None, window: int = ROLLING_BARS, periods: float = BARS_PER_YEAR
) -> Floats:
    """[T] Sharpe ratio of the last `window` excess returns at each mark; NaN before there are as many, and where they
    have no spread."""
    returns = excess_returns(equity, risk_free)
    ratios = np.full(len(returns) + 1, np.nan)
    if len(returns) < window:
        return ratios
    views = np.lib.stride_tricks.sliding_window_view(returns, window)
    spread = views.std(-1, ddof=1)
    safe = np.where(spread > NO_RISK, spread, np.nan)
    ratios[window:] = views.mean(-1) / safe * np.sqrt(periods)
    return ratios


def distribution(equity: ArrayLike) -> dict[str, float | None]:
    """Moments and tails of the simple returns: mean, standard deviation (n - 1), skewness, kurtosis (3 for a normal),
    value at risk and expected shortfall at 5% (as returns, so negative), best, worst, share above zero. Skewness and
    kurtosis are None for returns without spread."""
    returns = simple_returns(equity)
    mean, spread = float(returns.mean()), float(returns.std())
    scaled = (returns - mean) / spread if spread > NO_RISK else None
    at_risk = float(np.quantile(returns, TAIL))
    return {
        "mean": mean,
        "deviation": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        "skewness": None if scaled is None else float((scaled**3).mean()),
        "kurtosis": None if scaled is None else float((scaled**4).mean()),
        "value_at_risk": at_risk,
        "expected_shortfall": float(returns[returns <= at_risk].mean()),
        "best": float(returns.max()),
        "worst": float(returns.min()),
        "positive": float((returns > 0).mean()),
    }


def cost_summary(result: BacktestResult) -> dict[str, object]:
    """Costs in currency by kind, and their share of the equity on average a year; interest less fees in currency."""
    years = max(len(result.times) - 1, 1) / bars_per_year(result.times)
    parts: Mapping[str, Floats] = result.cost_parts or {"commission": result.costs}
    return {
        "parts": {name: float(values.sum()) for name, values in parts.items()},
        "drag": float((result.costs / result.equity.clip(min=1e-9)).sum() / years),
        "carry": result.carry,
    }


def equity_band(equity: ArrayLike, seed: int = 0, level: float = BAND_LEVEL) -> dict[str, list[float] | list[int]]:
    """What else the curve might have been: quantiles of equity over its start under the stationary bootstrap of Politis
    and Romano (1994), with mean blocks of T^(1/3) bars.

    Returns places (bars, at most about 200), low and high (multiples of the first mark) at `level`. Each quantile is of
    one bar on its own, over whole resampled histories. Raises InputError for an account that was ruined.
    """
    marks = np.asarray(equity, dtype=np.float64)
    if (marks <= 0).any():
        raise InputError("an account that was ruined has no band: its log returns have no end")
    returns = np.diff(np.log(marks))
    places = np.unique(np.linspace(0, len(marks) - 1, BAND_MARKS).astype(int))
    rng = np.random.default_rng(key(seed, 0, "equity band"))
    drawn = returns[resampled_bars(len(returns), len(returns) ** (1 / 3), BAND_DRAWS, rng)].cumsum(1)
    grown = np.exp(np.concatenate([np.zeros((BAND_DRAWS, 1)), drawn], 1)[:, places])
    low, high = np.quantile(grown, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {"places": places.tolist(), "low": low.tolist(), "high": high.tolist()}


def resampled_bars(bars: int, block: float, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """[draws, bars] places of a stationary bootstrap: blocks of geometric length, `block` >= 1 bars on average, that
    start anywhere and wrap around the end."""
    begins = rng.random((draws, bars)) < 1 / max(block, 1.0)
    begins[:, 0] = True
    places = np.arange(bars)
    began = np.maximum.accumulate(np.where(begins, places, 0), axis=1)  # where the block of each bar began
    starts = rng.integers(0, bars, (draws, bars))
    return np.asarray((np.take_along_axis(starts, began, 1) + places - began) % bars, dtype=np.int64)
