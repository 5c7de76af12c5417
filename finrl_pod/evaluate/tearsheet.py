"""Tear sheet of one account: drawdowns, monthly returns, rolling Sharpe ratio, return distribution, costs, equity band.

Pure functions of equity curves and backtest results; they return plain values that JSON can hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intervals import bootstrap_statistics
from finrl_pod.evaluate.metrics import (
    BARS_PER_YEAR,
    PERCENT,
    RATIO,
    RISK_EPSILON,
    Metric,
    bars_per_year,
    drawdown,
    excess_returns,
    simple_returns,
)
from finrl_pod.random import key
from finrl_pod.types import BacktestResult, Floats, Times

LISTED_DRAWDOWNS = 5
TAIL = 0.05  # level of value at risk and expected shortfall
ROLLING_BARS = 126  # half a year of daily bars
MIN_BAND_RETURNS = 20
BAND_LEVEL = 0.90
BAND_DRAWS = 1_000
BAND_MARKS = 200


@dataclass(frozen=True)
class Drawdown:
    """A fall from a peak. depth: 0 to -1. recovered: first bar back at the peak, None if there is none.

    bars: number from the peak to the recovery or to the end.
    """

    peak: str
    trough: str
    recovered: str | None
    depth: float
    bars: int


def drawdowns(times: Times, equity: ArrayLike, limit: int = LISTED_DRAWDOWNS) -> list[Drawdown]:
    """The `limit` deepest drawdowns, deepest first. times, equity: [T]."""
    falls = drawdown(equity)
    days = times.astype("datetime64[D]")
    is_below = np.concatenate([[False], falls < 0, [False]])
    starts = np.flatnonzero(is_below[1:] & ~is_below[:-1])  # first bar below a peak
    ends = np.flatnonzero(is_below[:-1] & ~is_below[1:])  # first bar back at the peak, T if there is none
    found_drawdowns = []
    for start, end in zip(starts, ends, strict=True):
        trough = start + int(np.argmin(falls[start:end]))
        recovery_day = str(days[end]) if end < len(days) else None
        bars = min(int(end), len(days) - 1) - int(start) + 1
        fall = float(falls[trough])
        found_drawdowns.append(Drawdown(str(days[start - 1]), str(days[trough]), recovery_day, fall, bars))
    return sorted(found_drawdowns, key=lambda item: item.depth)[:limit]


def longest_drawdown(times: Times, equity: ArrayLike) -> int:
    """Bars of the longest time from a peak to its recovery or to the end; 0 for a curve that never falls."""
    return max((item.bars for item in drawdowns(times, equity, limit=len(times))), default=0)


def monthly_returns(times: Times, equity: ArrayLike) -> dict[str, dict[str, float]]:
    """Simple return of each calendar month: {year: {month "1".."12": return}}.

    Last mark of each month over the last mark of the month before (for the first month: the first mark). The first and
    the last month may be partial.
    """
    marks = np.asarray(equity, dtype=np.float64)
    months = times.astype("datetime64[M]").astype(np.int64)
    lasts = np.append(np.flatnonzero(np.diff(months)), len(months) - 1)
    ends = np.concatenate([marks[:1], marks[lasts]])
    table: dict[str, dict[str, float]] = {}
    for month, start_mark, end_mark in zip(months[lasts], ends[:-1], ends[1:], strict=True):
        year, month_number = divmod(int(month), 12)
        table.setdefault(str(1970 + year), {})[str(month_number + 1)] = (
            float(end_mark / start_mark - 1) if start_mark > 0 else 0.0
        )
    return table


LAST_YEARS = (1, 3, 5)
TEAR_SHEET_METRICS = (
    Metric("best_month", "best month", "Best month", PERCENT, "highest return of a calendar month, partial ones too"),
    Metric("worst_month", "worst month", "Worst month", PERCENT, "lowest return of a calendar month, partial ones too"),
    Metric("winning_months", "winning", "Winning months", PERCENT, "share of calendar months with a return above zero"),
    Metric("month_to_date", "MTD", "Month to date", PERCENT, "return of the calendar month of the last bar"),
    Metric("year_to_date", "YTD", "Year to date", PERCENT, "return of the calendar year of the last bar"),
    *(
        Metric(
            f"annual_return_{years}_year{'s' * (years > 1)}",
            f"{years}y",
            f"Last {years} year{'s' * (years > 1)}",
            PERCENT,
            "compound return per year to the last bar, from the last bar that is this many years older; none for a "
            "shorter period",
        )
        for years in LAST_YEARS
    ),
    Metric("omega", "omega", "Omega ratio", RATIO, "gains in excess of cash over losses, both as sums", "higher"),
    Metric(
        "tail_ratio", "tails", "Tail ratio", RATIO, "95% quantile of returns over the size of the 5% quantile", "higher"
    ),
    Metric("time_in_market", "invested", "Time in market", PERCENT, "share of bars with holdings after their fills"),
    Metric("gross_exposure", "gross", "Gross exposure", PERCENT, "sum of absolute weights, mean over the bars"),
)


def tear_sheet_metrics(result: BacktestResult) -> dict[str, float]:
    """Values of `TEAR_SHEET_METRICS` by name; NaN where undefined."""
    calendar = monthly_returns(result.times, result.equity)
    months = np.array([value for year in calendar.values() for value in year.values()])
    last_year = list(calendar.values())[-1]
    returns, excess = simple_returns(result.equity), excess_returns(result.equity, result.risk_free)
    gain, loss = np.maximum(excess, 0.0).sum(), np.maximum(-excess, 0.0).sum()
    low, high = np.abs(np.quantile(returns, [TAIL, 1 - TAIL]))
    gross = np.abs(result.weights).sum(1)
    values = (
        months.max(), months.min(), (months > 0).mean(), months[-1], compound_return(last_year),
        *(_last_years_return(result, years) for years in LAST_YEARS),
        gain / loss if loss > RISK_EPSILON else np.nan, high / low if low > RISK_EPSILON else np.nan,
        (gross > RISK_EPSILON).mean(), gross.mean(),
    )  # fmt: skip
    return {metric.name: float(value) for metric, value in zip(TEAR_SHEET_METRICS, values, strict=True)}


def _last_years_return(result: BacktestResult, years: int) -> float:
    """Compound return per year over the last calendar years; NaN for a shorter period."""
    begin = np.datetime64(pd.Timestamp(result.times[-1]) - pd.DateOffset(years=years))
    first = int(np.searchsorted(result.times, begin, side="right")) - 1
    if first < 0:
        return float("nan")
    start, end = result.equity[first], result.equity[-1]
    return float(max(end / start, 0.0) ** (1 / years) - 1) if start > 0 else 0.0


def compound_return(months: Mapping[str, float]) -> float:
    """Compound return of a year from the returns of its months."""
    return float(np.prod([1 + value for value in months.values()]) - 1)


def rolling_sharpe(
    equity: ArrayLike, risk_free: ArrayLike | None = None, window: int = ROLLING_BARS, periods: float = BARS_PER_YEAR
) -> Floats:
    """Annualised Sharpe ratio [T] of the last `window` excess returns at each mark of equity [T].

    NaN before `window` returns exist, and where they are constant. periods: bars per year.
    """
    windows = pd.Series(excess_returns(equity, risk_free)).rolling(window)
    spread = windows.std()
    ratios = windows.mean() / spread.where(spread > RISK_EPSILON)
    return np.concatenate([[np.nan], ratios.to_numpy() * np.sqrt(periods)])


def rolling_volatility(equity: ArrayLike, window: int = ROLLING_BARS, periods: float = BARS_PER_YEAR) -> Floats:
    """Annualised standard deviation [T] of the last `window` returns at each mark of equity [T]; NaN before."""
    deviations = pd.Series(simple_returns(equity)).rolling(window).std().to_numpy()
    return np.concatenate([[np.nan], deviations * np.sqrt(periods)])


def rolling_alpha_beta(
    equity: ArrayLike,
    base: ArrayLike,
    risk_free: ArrayLike | None = None,
    window: int = ROLLING_BARS,
    periods: float = BARS_PER_YEAR,
) -> tuple[Floats, Floats]:
    """Annual alpha and beta [T] of the regression on a base over the last `window` excess returns; NaN before."""
    returns, base_returns = (pd.Series(excess_returns(curve, risk_free)) for curve in (equity, base))
    variance = base_returns.rolling(window).var()
    beta = returns.rolling(window).cov(base_returns) / variance.where(variance > RISK_EPSILON**2)
    alpha = periods * (returns.rolling(window).mean() - beta * base_returns.rolling(window).mean())
    return tuple(np.concatenate([[np.nan], values.to_numpy()]) for values in (alpha, beta))  # type: ignore[return-value]


def return_distribution(equity: ArrayLike) -> dict[str, float | None]:
    """Moments and tails of the simple returns of equity [T].

    mean, deviation (n - 1), skewness, kurtosis (3 for a normal; None for constant returns), value_at_risk and
    expected_shortfall at 5% (as returns, so negative), best, worst, and positive: the share of returns above zero.
    """
    returns = simple_returns(equity)
    mean = float(returns.mean())
    spread = float(returns.std())
    z_scores = (returns - mean) / spread if spread > RISK_EPSILON else None
    at_risk = float(np.quantile(returns, TAIL))
    return {
        "mean": mean,
        "deviation": float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        "skewness": None if z_scores is None else float((z_scores**3).mean()),
        "kurtosis": None if z_scores is None else float((z_scores**4).mean()),
        "value_at_risk": at_risk,
        "expected_shortfall": float(returns[returns <= at_risk].mean()),
        "best": float(returns.max()),
        "worst": float(returns.min()),
        "positive": float((returns > 0).mean()),
    }


def cost_summary(result: BacktestResult) -> dict[str, dict[str, float] | float | None]:
    """Costs of a backtest: currency by kind (parts), mean annual share of equity (drag), net interest (carry).

    Also the dividends received, None where prices include them or have none.
    """
    years = max(len(result.times) - 1, 1) / bars_per_year(result.times)
    cost_kinds: Mapping[str, Floats] = result.cost_parts or {"commission": result.costs}
    return {
        "parts": {name: float(values.sum()) for name, values in cost_kinds.items()},
        "drag": float((result.costs / result.balance.clip(min=1e-9)).sum() / years),
        "carry": result.carry,
        "dividends": None if result.dividends is None else float(result.dividends.sum()),
    }


def equity_band(equity: ArrayLike, seed: int = 0, level: float = BAND_LEVEL) -> dict[str, list[float] | list[int]]:
    """Pointwise bootstrap band of an equity curve [T] under the stationary bootstrap, mean blocks of T^(1/3) bars.

    Returns places (bar indices, at most about 200), low and high (multiples of the first mark): at each bar the
    quantiles of resampled histories at `level`. Raises InputError for an account that was ruined.
    """
    marks = np.asarray(equity, dtype=np.float64)
    if (marks <= 0).any():
        raise InputError("an account that was ruined has no equity band: its log returns are infinite")
    returns = np.diff(np.log(marks))
    mark_bars = np.unique(np.linspace(0, len(marks) - 1, BAND_MARKS).astype(int))
    rng = np.random.default_rng(key(seed, 0, "equity band"))

    def marks_at_places(bars: NDArray[np.int64]) -> Floats:
        log_growth = returns[bars].cumsum(1)
        return np.concatenate([np.zeros((len(bars), 1)), log_growth], 1)[:, mark_bars]

    block = len(returns) ** (1 / 3)
    growth = np.exp(bootstrap_statistics(marks_at_places, len(returns), block, BAND_DRAWS, rng))
    low, high = np.quantile(growth, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {"places": mark_bars.tolist(), "low": low.tolist(), "high": high.tolist()}
