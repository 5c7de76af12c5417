"""Performance metrics of equity curves, described in `METRICS`: ratios, drawdown, turnover, costs.

T marks of equity give T - 1 simple returns. Ratios are in excess of the return of cash if `risk_free` [T-1] is given; a
ratio whose risk is zero is 0.0 if the gain is zero too (an account that stayed in cash), otherwise NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.prices import Floats

BARS_PER_YEAR = 252  # daily bars: trading days of a year
CALENDAR_TOLERANCE = 0.05  # holidays explain smaller differences in bars per year
EDGE_DAYS = 5.0  # days by which a weekend at either end may distort a short period
MAX_LOG_GROWTH = 500.0  # over a period: what a search for a rate of return covers
RISK_EPSILON = 1e-12  # a standard deviation below this is rounding error


@dataclass(frozen=True)
class Unit:
    """Number format of a metric. heading: text below a label. suffix: text behind a value. digits: decimals."""

    name: Literal["percent", "ratio", "currency", "times", "count"]
    heading: str = ""
    suffix: str = ""
    digits: int = 2


PERCENT = Unit("percent", "%", "%", 1)  # values are fractions
RATIO = Unit("ratio")
CURRENCY = Unit("currency", digits=0)  # the currency of the prices
TIMES = Unit("times", "× per year", "×")
COUNT = Unit("count", digits=1)


@dataclass(frozen=True)
class Metric:
    """How tables, reports, the dashboard and the glossary show a metric.

    name: key in JSON. heading: short label for terminals. explanation: definition, a phrase that starts in lower case.
    better: direction of improvement, None if there is none. level: 1 for every table, 2 unless the table is narrow, 3
    for full tables only.
    """

    name: str
    heading: str
    label: str
    unit: Unit
    explanation: str
    better: Literal["higher", "lower"] | None = None
    level: Literal[1, 2, 3] = 3

    @property
    def definition(self) -> str:
        """The explanation as a sentence, followed by the direction of improvement."""
        direction = f" {self.better.capitalize()} is better." if self.better else ""
        return f"{self.explanation[0].upper()}{self.explanation[1:]}.{direction}"


def bars_per_year(times: ArrayLike) -> float:
    """Number of bars in a year, by which metrics are annualised: 252 for daily bars of a stock exchange.

    times: [T] datetime64; of several histories end to end, the first counts. Normally 252 times the average number of
    bars per day. Where the calendar clearly disagrees (markets that never close, weekly bars, sessions that cross
    midnight UTC), the bars counted per 365.25 days.
    """
    moments = np.asarray(times, dtype="datetime64[ns]")
    restarts = np.flatnonzero(moments[1:] < moments[:-1])
    moments = moments[: restarts[0] + 1] if len(restarts) else moments
    usual_number = BARS_PER_YEAR * len(moments) / max(len(np.unique(moments.astype("datetime64[D]"))), 1)
    days = float((moments[-1] - moments[0]) / np.timedelta64(1, "D")) if len(moments) > 1 else 0.0
    if days <= 0:
        return usual_number
    counted_number = (len(moments) - 1) / days * 365.25
    is_usual = abs(counted_number / usual_number - 1) <= CALENDAR_TOLERANCE + EDGE_DAYS / days
    return usual_number if is_usual else counted_number


def simple_returns(equity: ArrayLike) -> Floats:
    """Simple returns [T-1, ...] of equity [T, ...]; 0.0 after ruin (equity at or below zero).

    Raises InputError for fewer than two marks, values that are not finite, and a first mark at or below zero.
    """
    marks = np.asarray(equity, dtype=np.float64)
    if marks.ndim == 0 or len(marks) < 2:
        raise InputError(f"metrics need the equity of at least two bars, got {marks.size}; choose a longer period")
    if not np.isfinite(marks).all():
        raise InputError(f"equity must be finite, bar {int(np.argwhere(~np.isfinite(marks))[0][0])} is not")
    if (marks[0] <= 0).any():
        raise InputError(f"equity must start above zero, got {marks[0].min()}")
    safe = np.where(marks[:-1] > 0, marks[:-1], 1.0)
    return np.where(marks[:-1] > 0, marks[1:] / safe - 1.0, 0.0)


def excess_returns(equity: ArrayLike, risk_free: ArrayLike | None = None) -> Floats:
    """Simple returns [T-1, ...] minus the return of cash [T-1]. Raises InputError if the lengths differ."""
    returns = simple_returns(equity)
    if risk_free is None:
        return returns
    cash = np.asarray(risk_free, dtype=np.float64)
    if cash.shape != returns.shape[:1]:
        raise InputError(f"{len(returns)} returns need as many returns of cash, got {cash.shape}")
    return returns - cash.reshape(-1, *(1,) * (returns.ndim - 1))


def cumulative_return(equity: ArrayLike) -> float:
    """Last mark over first mark, minus one."""
    simple_returns(equity)  # raises for invalid equity
    marks = np.asarray(equity, dtype=np.float64)
    return float(marks[-1] / marks[0] - 1.0)


def annual_return(equity: ArrayLike, periods_per_year: float = BARS_PER_YEAR) -> float:
    """Annual return (CAGR): (E_last / E_first) ** (periods_per_year / (T - 1)) - 1; -1.0 after ruin."""
    years = len(simple_returns(equity)) / periods_per_year
    marks = np.asarray(equity, dtype=np.float64)
    return float(np.maximum(marks[-1] / marks[0], 0.0) ** (1.0 / years) - 1.0)


def annual_volatility(equity: ArrayLike, periods_per_year: float = BARS_PER_YEAR) -> float:
    """Sample standard deviation (n - 1) of returns times sqrt(periods_per_year); 0.0 for a single return."""
    return float(_deviation(simple_returns(equity)) * np.sqrt(periods_per_year))


def sharpe(equity: ArrayLike, periods_per_year: float = BARS_PER_YEAR, risk_free: ArrayLike | None = None) -> float:
    """Annualised Sharpe ratio: mean excess return over its sample standard deviation (n - 1) (Sharpe 1994)."""
    returns = excess_returns(equity, risk_free)
    return _ratio(returns.mean() * np.sqrt(periods_per_year), _deviation(returns))


def sortino(equity: ArrayLike, periods_per_year: float = BARS_PER_YEAR, risk_free: ArrayLike | None = None) -> float:
    """Annualised Sortino ratio: mean excess return over sqrt(mean(min(r, 0)^2)) (Sortino 1994)."""
    returns = excess_returns(equity, risk_free)
    downside = np.sqrt((np.minimum(returns, 0.0) ** 2).mean())
    return _ratio(returns.mean() * np.sqrt(periods_per_year), downside)


def drawdown(equity: ArrayLike) -> Floats:
    """Drawdown [T, ...] from the running maximum: 0.0 or negative, -0.2 for 20% below."""
    simple_returns(equity)  # raises for invalid equity
    marks = np.asarray(equity, dtype=np.float64)
    return marks / np.maximum.accumulate(marks, axis=0) - 1.0


def max_drawdown(equity: ArrayLike) -> float:
    """Maximum drawdown, 0.0 or negative."""
    return float(drawdown(equity).min())


def calmar(equity: ArrayLike, periods_per_year: float = BARS_PER_YEAR) -> float:
    """Calmar ratio: annual return over the size of the maximum drawdown (Young 1991)."""
    return _ratio(annual_return(equity, periods_per_year), -max_drawdown(equity))


def annual_turnover(traded_fractions: ArrayLike, periods_per_year: float = BARS_PER_YEAR) -> float:
    """One-sided annual turnover: half of the mean traded fraction per decision, times periods_per_year.

    traded_fractions: [T], (buys + sells) / equity of each bar; the mean is over T - 1 decisions, as the last one fills
    at or before the last mark. 1.0 means that the whole portfolio is replaced once per year; the first purchase of an
    account that starts in cash counts one half.
    """
    fractions = np.asarray(traded_fractions, dtype=np.float64)
    return float(0.5 * fractions.sum() / max(len(fractions) - 1, 1) * periods_per_year)


@dataclass(frozen=True)
class AccountHistory:
    """What metrics of one account are computed from.

    equity: [T] currency. turnover: [T], value traded (buys and sells) over equity of each bar. costs: [T] currency.
    risk_free: [T-1], simple return of cash.
    """

    equity: ArrayLike
    turnover: ArrayLike
    costs: ArrayLike
    periods_per_year: float = BARS_PER_YEAR
    risk_free: ArrayLike | None = None


@dataclass(frozen=True)
class AccountMetric(Metric):
    """A metric of one account alone; `function` computes it."""

    function: Callable[[AccountHistory], float] = field(kw_only=True)


METRICS = (
    AccountMetric(
        "cumulative_return",
        "return",
        "Total return",
        PERCENT,
        "growth over the whole period, after costs",
        "higher",
        function=lambda account: cumulative_return(account.equity),
    ),
    AccountMetric(
        "annual_return",
        "CAGR",
        "Annual return (CAGR)",
        PERCENT,
        "compound annual growth rate",
        "higher",
        level=1,
        function=lambda account: annual_return(account.equity, account.periods_per_year),
    ),
    AccountMetric(
        "annual_volatility",
        "volatility",
        "Volatility",
        PERCENT,
        "annualised standard deviation of returns",
        "lower",
        level=2,
        function=lambda account: annual_volatility(account.equity, account.periods_per_year),
    ),
    AccountMetric(
        "sharpe",
        "Sharpe",
        "Sharpe ratio",
        RATIO,
        "annualised mean return above cash over the standard deviation of returns",
        "higher",
        level=1,
        function=lambda account: sharpe(account.equity, account.periods_per_year, account.risk_free),
    ),
    AccountMetric(
        "sortino",
        "Sortino",
        "Sortino ratio",
        RATIO,
        "annualised mean excess return over downside deviation",
        "higher",
        function=lambda account: sortino(account.equity, account.periods_per_year, account.risk_free),
    ),
    AccountMetric(
        "calmar",
        "Calmar",
        "Calmar ratio",
        RATIO,
        "annual return over maximum drawdown",
        "higher",
        function=lambda account: calmar(account.equity, account.periods_per_year),
    ),
    AccountMetric(
        "max_drawdown",
        "drawdown",
        "Max drawdown",
        PERCENT,
        "largest decline from a peak, 0 or negative",
        "higher",
        level=1,
        function=lambda account: max_drawdown(account.equity),
    ),
    AccountMetric(
        "turnover",
        "turnover",
        "Turnover",
        TIMES,
        "half of the value traded per year, the first purchase included, as a multiple of equity",
        level=2,
        function=lambda account: annual_turnover(account.turnover, account.periods_per_year),
    ),
    AccountMetric(
        "costs_paid",
        "costs",
        "Costs paid",
        CURRENCY,
        "total over the period, in the currency of the prices",
        "lower",
        level=2,
        function=lambda account: float(np.sum(np.asarray(account.costs, dtype=np.float64))),
    ),
)
FLOW_METRICS = (
    Metric(
        "time_weighted_return",
        "TWR",
        "Time-weighted return",
        PERCENT,
        "compound return per calendar year that does not depend on when money was paid in or taken out",
        "higher",
        level=1,
    ),
    Metric(
        "money_weighted_return",
        "MWR",
        "Money-weighted return",
        PERCENT,
        "internal rate of return per calendar year: the starting cash and all deposits less withdrawals grow at it to "
        "the last value of the account",
        "higher",
        level=1,
    ),
)
AFTER_TAX = Metric(
    "after_tax_return",
    "after tax",
    "Return after tax",
    PERCENT,
    "growth over the whole period after the tax on realised gains, paid at the last bar of each calendar year",
    "higher",
    level=1,
)
OWNER_METRICS = (*FLOW_METRICS, AFTER_TAX)  # of backtests with deposits and withdrawals, or with tax rates
METRIC_NAMES = tuple(metric.name for metric in METRICS)
METRIC_BY_NAME = {metric.name: metric for metric in METRICS}


def summary(
    equity: ArrayLike,
    turnover: ArrayLike | None = None,
    costs: ArrayLike | None = None,
    periods_per_year: float = BARS_PER_YEAR,
    risk_free: ArrayLike | None = None,
) -> dict[str, float]:
    """Values of `METRICS` by name for one account. The parameters are the fields of `AccountHistory`.

    Without turnover or costs their metrics are 0.0.
    """
    zeros = np.zeros(1)
    account = AccountHistory(
        equity, zeros if turnover is None else turnover, zeros if costs is None else costs, periods_per_year, risk_free
    )
    return {metric.name: metric.function(account) for metric in METRICS}


def flow_factors(balance: ArrayLike, flows: ArrayLike) -> Floats:
    """Factors [T] on the marks of an account with which its returns are time-weighted; 1 for the last mark.

    balance: [T] value of the account. flows: [T] currency, part of the mark of its bar. The return of a bar is the
    mark less its flow, over the mark before: a flow scales the marks before it as a split scales prices. A flow of an
    account without other money scales nothing.
    """
    marks, amounts = (np.asarray(values, dtype=np.float64) for values in (balance, flows))
    ratios = np.divide(marks, marks - amounts, out=np.ones_like(marks), where=marks > np.maximum(amounts, 0.0))
    return np.cumprod(np.append(ratios[1:], 1.0)[::-1])[::-1]


def time_weighted_equity(balance: ArrayLike, flows: ArrayLike) -> Floats:
    """Equity [T] as if no money had been paid in or taken out: the first mark, grown by time-weighted returns.

    balance, flows: see `flow_factors`.
    """
    factors = flow_factors(balance, flows)
    equity: Floats = np.asarray(balance, dtype=np.float64) * factors / factors[0]
    return equity


def flow_returns(times: ArrayLike, balance: ArrayLike, flows: ArrayLike) -> dict[str, float]:
    """Values of `FLOW_METRICS` by name, in years of 365.25 days.

    times: [T] datetime64. balance, flows: see `flow_factors`. The money-weighted return is NaN if no rate
    explains the last mark.
    """
    from scipy.optimize import bisect

    marks, paid = (np.asarray(values, dtype=np.float64) for values in (balance, flows))
    moments = np.asarray(times, dtype="datetime64[ns]")
    years = (moments - moments[0]) / np.timedelta64(1, "D") / 365.25
    growth = time_weighted_equity(marks, paid)[-1] / marks[0]
    left = 1.0 - years / years[-1]  # share of the period after a flow

    def surplus(log_growth: float) -> float:
        return float(marks[0] * np.exp(log_growth) + (paid * np.exp(log_growth * left))[1:].sum() - marks[-1])

    ends = (-MAX_LOG_GROWTH, MAX_LOG_GROWTH)
    log_growth = bisect(surplus, *ends) if surplus(ends[0]) < 0 < surplus(ends[1]) else np.nan
    values = (growth ** (1 / years[-1]) - 1, np.expm1(log_growth / years[-1]))
    return {metric.name: float(value) for metric, value in zip(FLOW_METRICS, values, strict=True)}


def is_constant(returns: Floats) -> bool:
    """Whether returns [T] vary by no more than rounding error."""
    return bool(returns.std() <= RISK_EPSILON)


def check_returns(returns: ArrayLike, minimum: int, purpose: str) -> Floats:
    """Returns [T] as float64 if a statistic can be computed from them.

    purpose: what the returns are for, with its article; starts the messages. Raises InputError for another shape,
    fewer than `minimum` returns, values that are not finite, and constant returns.
    """
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 1:
        raise InputError(f"{purpose} needs one series of returns, got an array of shape {values.shape}")
    if len(values) < minimum:
        raise InputError(f"{purpose} needs at least {minimum} returns, got {len(values)}; use a longer period")
    if not np.isfinite(values).all():
        bar = int(np.argmin(np.isfinite(values)))
        raise InputError(f"{purpose} needs finite returns, bar {bar} is {values[bar]}")
    if is_constant(values):
        raise InputError(f"{purpose} needs returns that vary, all {len(values)} are {values[0]:g}")
    return values


def _deviation(returns: Floats) -> float:
    """Sample standard deviation of returns [T]; 0.0 for a single return."""
    return float(returns.std(ddof=1)) if len(returns) > 1 else 0.0


def _ratio(gain: float, risk: float) -> float:
    """gain / risk; where the risk is zero, 0.0 for no gain and NaN otherwise."""
    if risk <= RISK_EPSILON:
        return 0.0 if abs(gain) <= RISK_EPSILON else float("nan")
    return float(gain / risk)
