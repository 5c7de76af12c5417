"""What an equity curve says: growth, risk, ratios, costs. Plain arrays in, plain numbers out; no engine is known here.

Time is the first axis of every array and trailing axes are separate accounts: `equity` [T] gives scalars, [T, B] gives
[B]. Returns are simple returns of consecutive marks, so T marks give T - 1 returns. Sharpe and Sortino ratios are in
excess of what cash earned, where it earned something: `risk_free` [T-1], its simple return from mark to mark.

Rule for a ratio whose risk is zero: 0.0 where nothing was earned either (an account that stayed in cash), NaN where
the ratio is undefined. `to_json` writes NaN as null, so no report holds one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.types import Floats

BARS_PER_YEAR = 252  # daily bars: the sessions of a year
OTHER_CALENDAR = 0.05  # bars a year that differ by more are no matter of holidays
EDGE_DAYS = 5.0
NO_RISK = 1e-12  # volatilities below this are rounding, not risk

METRICS = (
    "cumulative_return",
    "annual_return",
    "annual_volatility",
    "sharpe",
    "sortino",
    "calmar",
    "max_drawdown",
    "turnover",
    "costs_paid",
)


def bars_per_year(times: ArrayLike) -> float:
    """252 sessions of as many bars as the days among `times` [T] datetime64 have on average: 252 for daily bars.

    Where the calendar says something clearly else (a market that never closes, weekly bars, sessions over midnight in
    UTC), it is the bars that `times` hold a year of 365.25 days.
    """
    moments = np.asarray(times, dtype="datetime64[ns]")
    usual = BARS_PER_YEAR * len(moments) / max(len(np.unique(moments.astype("datetime64[D]"))), 1)
    days = float((moments[-1] - moments[0]) / np.timedelta64(1, "D")) if len(moments) > 1 else 0.0
    if days <= 0:
        return usual
    counted = (len(moments) - 1) / days * 365.25
    # Exchanges differ by a few holidays a year, and a short period may begin or end beside a long weekend.
    return usual if abs(counted / usual - 1) <= OTHER_CALENDAR + EDGE_DAYS / days else counted


def simple_returns(equity: ArrayLike) -> Floats:
    """Equity [T, ...] in currency -> simple returns [T-1, ...]. Raises InputError below two marks or on NaN."""
    marks = np.asarray(equity, dtype=np.float64)
    if marks.ndim == 0 or len(marks) < 2:
        raise InputError(f"metrics need the equity of at least two bars, got {marks.size}; choose a longer period")
    if not np.isfinite(marks).all():
        raise InputError(f"equity must be finite, bar {int(np.argwhere(~np.isfinite(marks))[0][0])} is not")
    if (marks[0] <= 0).any():
        raise InputError(f"equity must start above zero, got {marks[0].min()}")
    # After ruin (equity at or below zero) there is nothing left to earn a return on.
    safe = np.where(marks[:-1] > 0, marks[:-1], 1.0)
    return np.where(marks[:-1] > 0, marks[1:] / safe - 1.0, 0.0)


def excess_returns(equity: ArrayLike, risk_free: ArrayLike | None = None) -> Floats:
    """Simple returns [T-1, ...] less those of cash [T-1]. Raises InputError where their lengths differ."""
    returns = simple_returns(equity)
    if risk_free is None:
        return returns
    cash = np.asarray(risk_free, dtype=np.float64)
    if cash.shape != returns.shape[:1]:
        raise InputError(f"{len(returns)} returns need as many returns of cash, got {cash.shape}")
    return returns - cash.reshape(-1, *(1,) * (returns.ndim - 1))


def cumulative_return(equity: ArrayLike) -> Any:
    """Last mark over first mark, minus one."""
    simple_returns(equity)  # checks
    marks = np.asarray(equity, dtype=np.float64)
    return _plain(marks[-1] / marks[0] - 1.0)


def annual_return(equity: ArrayLike, periods_per_year: float = BARS_PER_YEAR) -> Any:
    """Compound growth a year: (E_last / E_first) ** (periods_per_year / (T - 1)) - 1; -1.0 after ruin."""
    years = len(simple_returns(equity)) / periods_per_year
    marks = np.asarray(equity, dtype=np.float64)
    return _plain(np.maximum(marks[-1] / marks[0], 0.0) ** (1.0 / years) - 1.0)


def annual_volatility(equity: ArrayLike, periods_per_year: float = BARS_PER_YEAR) -> Any:
    """Sample standard deviation (n - 1) of the returns, times sqrt(periods_per_year); 0.0 for a single return."""
    return _plain(_deviation(simple_returns(equity)) * np.sqrt(periods_per_year))


def sharpe(equity: ArrayLike, periods_per_year: float = BARS_PER_YEAR, risk_free: ArrayLike | None = None) -> Any:
    """Mean excess return over its sample standard deviation (n - 1), times sqrt(periods_per_year) (Sharpe 1994)."""
    returns = excess_returns(equity, risk_free)
    return _ratio(returns.mean(0) * np.sqrt(periods_per_year), _deviation(returns))


def sortino(equity: ArrayLike, periods_per_year: float = BARS_PER_YEAR, risk_free: ArrayLike | None = None) -> Any:
    """Mean excess return over its downside deviation sqrt(mean(min(r, 0)^2)), times sqrt(periods_per_year) (Sortino
    1994)."""
    returns = excess_returns(equity, risk_free)
    downside = np.sqrt((np.minimum(returns, 0.0) ** 2).mean(0))
    return _ratio(returns.mean(0) * np.sqrt(periods_per_year), downside)


def drawdown(equity: ArrayLike) -> Floats:
    """Equity [T, ...] -> distance from the running maximum [T, ...], 0.0 or negative, -0.2 for 20% below."""
    simple_returns(equity)
    marks = np.asarray(equity, dtype=np.float64)
    return marks / np.maximum.accumulate(marks, axis=0) - 1.0


def max_drawdown(equity: ArrayLike) -> Any:
    """The deepest drawdown, 0.0 or negative."""
    return _plain(drawdown(equity).min(0))


def calmar(equity: ArrayLike, periods_per_year: float = BARS_PER_YEAR) -> Any:
    """Annual return over the depth of the deepest drawdown (Young 1991)."""
    return _ratio(annual_return(equity, periods_per_year), -np.asarray(max_drawdown(equity)))


def annual_turnover(traded: ArrayLike, periods_per_year: float = BARS_PER_YEAR) -> Any:
    """One-sided turnover a year: half the sum of buys and sells over equity, mean a bar, times periods_per_year.

    traded: [T, ...], (buys + sells) / equity of each bar; the mean is over T - 1 decisions, the last of which fills at
    or before the last mark. 1.0 means that the whole portfolio was replaced once a year; the first purchase of an
    account that starts in cash counts a half.
    """
    shares = np.asarray(traded, dtype=np.float64)
    return _plain(0.5 * shares.sum(0) / max(len(shares) - 1, 1) * periods_per_year)


def summary(
    equity: ArrayLike,
    turnover: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    periods_per_year: float = BARS_PER_YEAR,
    risk_free: ArrayLike | None = None,
) -> dict[str, float]:
    """All of `METRICS` of one account, as floats.

    equity: [T] currency. turnover: [T], traded value over equity. costs: [T] currency. Where turnover or costs are not
    given their metric is 0.0. `costs_paid` is the sum in currency. risk_free: [T-1], the return of cash.
    """
    return {
        "cumulative_return": cumulative_return(equity),
        "annual_return": annual_return(equity, periods_per_year),
        "annual_volatility": annual_volatility(equity, periods_per_year),
        "sharpe": sharpe(equity, periods_per_year, risk_free),
        "sortino": sortino(equity, periods_per_year, risk_free),
        "calmar": calmar(equity, periods_per_year),
        "max_drawdown": max_drawdown(equity),
        "turnover": 0.0 if turnover is None else annual_turnover(turnover, periods_per_year),
        "costs_paid": 0.0 if costs is None else float(np.sum(np.asarray(costs, dtype=np.float64))),
    }


def _deviation(returns: Floats) -> Floats:
    """Sample standard deviation [T, ...] -> [...]; 0.0 for a single return."""
    if len(returns) < 2:
        return np.zeros(returns.shape[1:])
    return np.asarray(returns.std(0, ddof=1), dtype=np.float64)


def _ratio(gain: ArrayLike, risk: ArrayLike) -> Any:
    """gain / risk, by the rule of this module where the risk is zero."""
    gains, risks = np.asarray(gain, dtype=np.float64), np.asarray(risk, dtype=np.float64)
    none = risks <= NO_RISK
    undefined = np.where(np.abs(gains) <= NO_RISK, 0.0, np.nan)
    return _plain(np.where(none, undefined, gains / np.where(none, 1.0, risks)))


def _plain(value: Any) -> Any:
    """A Python float of a single number, the array of several."""
    array = np.asarray(value, dtype=np.float64)
    return float(array) if array.ndim == 0 else array
