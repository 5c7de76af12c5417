"""Active management (Grinold and Kahn 2000): what a portfolio adds to its base or benchmark, and how far it differs.

Intervals of active return and alpha invert the tests of `significance`; the others resample the bars of both accounts
together. Weights are [T, N] over the same bars and assets; bars without holdings count as missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intervals import DRAWS, MIN_BARS, Interval, block_length, bootstrap_statistics, resample_bars
from finrl_pod.evaluate.metrics import (
    BARS_PER_YEAR,
    COUNT,
    PERCENT,
    RATIO,
    RISK_EPSILON,
    Metric,
    excess_returns,
    is_constant,
    simple_returns,
)
from finrl_pod.evaluate.significance import REGRESSION, alpha_series, mean_interval
from finrl_pod.prices import Bools, Floats

LEVEL = 0.90  # coverage of the intervals
SHOWN = 1.96 + 0.84  # standard errors: a one-sided test at 2.5%, the level of a first look, with a power of 80%
TAIL = 0.05  # quantile of the effective number of holdings


class ActiveStatistics(NamedTuple):
    """A portfolio against its base, annualised.

    sharpe_difference: Sharpe ratio minus the Sharpe ratio of the base. information_ratio: mean active return over
    tracking error. alpha, beta: coefficients of a regression of excess returns on the base. tracking_error: standard
    deviation of active returns. years_to_show: result of `years_to_show` for the measured information ratio.
    """

    sharpe_difference: Interval
    information_ratio: Interval
    alpha: Interval
    beta: Interval
    tracking_error: float
    years_to_show: float | None


def active_statistics(
    returns: ArrayLike,
    base: ArrayLike,
    level: float = LEVEL,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    periods_per_year: float = BARS_PER_YEAR,
    risk_free: ArrayLike | None = None,
) -> ActiveStatistics:
    """Statistics of simple returns [T] relative to a base [T] over the same bars, with intervals.

    risk_free: [T], return of cash. A ratio of constant returns counts as 0, and so does the beta to a constant base.
    """
    cash = 0.0 if risk_free is None else np.asarray(risk_free, dtype=np.float64)
    account = np.asarray(returns, dtype=np.float64) - cash
    reference = np.asarray(base, dtype=np.float64) - cash
    active = account - reference
    samples = bootstrap_statistics(
        lambda bars: _statistics(account[bars], reference[bars], periods_per_year),
        *(len(account), block_length(active), draws, np.random.default_rng(seed)),
    )
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    value = _statistics(account[None], reference[None], periods_per_year)[0]
    sharpe, information, beta = (Interval(float(value[i]), float(low[i]), float(high[i])) for i in range(3))
    alpha = annual_mean(alpha_series(active, reference).values, level, periods_per_year, REGRESSION)
    error = float(active.std(ddof=1) * np.sqrt(periods_per_year))
    return ActiveStatistics(sharpe, information, alpha, beta, error, years_to_show(information.value))


def annual_mean(series: Floats, level: float, periods_per_year: float, parameters: int = 1) -> Interval:
    """Mean of a series [T] per year with its interval; both ends equal the mean of a constant series.

    Both are NaN for fewer than `MIN_BARS` values. parameters: argument of `mean_z_score`.
    """
    mean = periods_per_year * float(series.mean())
    if len(series) < MIN_BARS:
        return Interval(mean, math.nan, math.nan)
    if is_constant(series):
        return Interval(mean, mean, mean)
    return Interval(*(periods_per_year * value for value in mean_interval(series, level, parameters)))


def years_to_show(information_ratio: float) -> float | None:
    """((1.96 + 0.84) / IR)^2: years in which a test at 2.5% shows an annual information ratio with a power of 80%.

    None unless it is above 0.
    """
    return (SHOWN / information_ratio) ** 2 if information_ratio > 0 else None


# ---------------------------------------------------------------------- weights


def effective_number(weights: ArrayLike) -> Floats:
    """Effective number of holdings [T] of weights [T, N]: (sum |w|)^2 / sum w^2; NaN at bars without holdings."""
    gross = np.abs(np.asarray(weights, dtype=np.float64))
    squares = (gross**2).sum(-1)
    has_holdings = squares > 0
    number: Floats = np.where(has_holdings, gross.sum(-1) ** 2 / np.where(has_holdings, squares, 1.0), np.nan)
    return number


def active_share(weights: ArrayLike, base: ArrayLike) -> Floats:
    """Active share [T] of weights [T, N]: half the sum of absolute differences to the base (Cremers, Petajisto 2009).

    NaN at bars where either holds nothing.
    """
    account, reference = _weight_pair(weights, base)
    are_invested = (account != 0).any(-1) & (reference != 0).any(-1)
    share: Floats = np.where(are_invested, np.abs(account - reference).sum(-1) / 2, np.nan)
    return share


def mean_absolute_tilt(weights: ArrayLike, base: ArrayLike) -> float:
    """Mean of |log(w / b)| over the bars and assets where both weights [T, N] are positive; NaN if there are none."""
    account, reference = _weight_pair(weights, base)
    are_positive = (account > 0) & (reference > 0)
    ratios = account[are_positive] / reference[are_positive]
    return float(np.abs(np.log(ratios)).mean()) if len(ratios) else float("nan")


def transfer_coefficient(desired_weights: ArrayLike, held_weights: ArrayLike) -> float:
    """Mean over bars of the correlation across assets of desired and held active weights [T, N].

    1 if limits and slow trading change nothing but the size (Clarke, de Silva and Thorley 2002, with equal risks).
    Assets where either is NaN are left out, and bars where either is constant. NaN if no bar is left.
    """
    return known_mean(row_correlations(*_weight_pair(desired_weights, held_weights)))


def row_correlations(x: Floats, y: Floats, minimum: int = 2) -> Floats:
    """Correlation [T] over the assets where both [T, N] are known; NaN for fewer than `minimum` or constant values."""
    is_known = np.isfinite(x) & np.isfinite(y)
    count = is_known.sum(-1, keepdims=True)
    x, y = (np.where(is_known, values, 0.0) for values in (x, y))
    x, y = (np.where(is_known, v - v.sum(-1, keepdims=True) / np.maximum(count, 1), 0.0) for v in (x, y))
    scale = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    is_defined = (count[:, 0] >= minimum) & (scale > RISK_EPSILON)
    return np.where(is_defined, (x * y).sum(-1) / np.where(is_defined, scale, 1.0), np.nan)


# ---------------------------------------------------------------------- helpers


def _statistics(returns: Floats, base: Floats, periods: float) -> Floats:
    """Difference of Sharpe ratios, information ratio and beta [D, 3] of D histories [D, T]."""
    bars = returns.shape[1]
    mean = returns.mean(1)
    base_mean = base.mean(1)
    deviations = base - base_mean[:, None]
    base_variance = (deviations**2).sum(1) / (bars - 1)
    covariance = ((returns - mean[:, None]) * deviations).sum(1) / (bars - 1)
    beta = _ratio(covariance, base_variance, RISK_EPSILON**2)
    sharpe = _ratio(mean, returns.std(1, ddof=1)) - _ratio(base_mean, np.sqrt(base_variance))
    information = _ratio(mean - base_mean, (returns - base).std(1, ddof=1))
    return np.stack([sharpe * np.sqrt(periods), information * np.sqrt(periods), beta], 1)


def _ratio(gain: Floats, risk: Floats, smallest: float = RISK_EPSILON) -> Floats:
    """gain / risk; 0 where the risk is rounding error."""
    is_known = risk > smallest
    ratio: Floats = np.where(is_known, gain / np.where(is_known, risk, 1.0), 0.0)
    return ratio


def _weight_pair(weights: ArrayLike, base: ArrayLike) -> tuple[Floats, Floats]:
    first = np.asarray(weights, dtype=np.float64)
    second = np.asarray(base, dtype=np.float64)
    if first.ndim != 2 or first.shape != second.shape:
        raise InputError(f"weights must be [T, N] over the same bars and assets, got {first.shape} and {second.shape}")
    return first, second


# ---------------------------------------------------------------------- metrics against a benchmark

BETA_BARS = 252  # of trailing betas
MIN_RETURNS = 3  # fewer leave no degree of freedom to the regression


BENCHMARK_METRICS = (
    Metric(
        "alpha",
        "alpha",
        "Alpha",
        PERCENT,
        "annual intercept of the regression of excess returns on the excess returns of the benchmark",
        "higher",
    ),
    Metric(
        "beta",
        "beta",
        "Beta",
        RATIO,
        "slope of the regression of excess returns on the excess returns of the benchmark",
    ),
    Metric(
        "correlation",
        "correlation",
        "Correlation",
        RATIO,
        "correlation of the excess returns with the excess returns of the benchmark",
    ),
    Metric("tracking_error", "TE", "Tracking error", PERCENT, "annualised standard deviation of active returns"),
    Metric(
        "residual_tracking_error",
        "residual TE",
        "Residual tracking error",
        PERCENT,
        "annualised standard deviation (n - 2) of the residuals of the regression on the benchmark: the risk that beta "
        "does not explain",
    ),
    Metric(
        "information_ratio",
        "IR",
        "Information ratio",
        RATIO,
        "annualised mean active return over tracking error",
        "higher",
    ),
    Metric(
        "years_to_show",
        "years to show",
        "Years to show",
        COUNT,
        "years of returns in which a one-sided test at 2.5% shows an information ratio of this size with a power of "
        "80%: ((1.96 + 0.84) / IR)²; none unless it is above 0",
        "lower",
    ),
    Metric(
        "up_capture",
        "up",
        "Up capture",
        RATIO,
        "compound return on the bars on which the benchmark rose, over the compound return of the benchmark",
        "higher",
    ),
    Metric(
        "down_capture",
        "down",
        "Down capture",
        RATIO,
        "compound return on the bars on which the benchmark fell, over the compound return of the benchmark; near 1 "
        "over years of daily bars, where falls compound to almost -100%",
        "lower",
    ),
)
ACTIVE_SHARE = Metric(
    "active_share",
    "active share",
    "Active share",
    PERCENT,
    "half the sum of absolute differences between the weights of the account and of the benchmark",
)
EFFECTIVE_NUMBER = Metric(
    "effective_number",
    "effective holdings",
    "Effective holdings",
    COUNT,
    "number of positions of equal size that would be as diversified: (sum of weights)² over the sum of squared "
    "weights, mean over the bars",
)
HOLDINGS_BETA = Metric(
    "holdings_beta",
    "holdings beta",
    "Beta of holdings",
    RATIO,
    "weights times the betas of the assets to the benchmark over the 252 bars before, mean over the bars; an asset "
    "with less than half of that history counts as 1. A beta of returns that differs comes from timing",
)
COMPARISON_METRICS = (*BENCHMARK_METRICS, HOLDINGS_BETA, ACTIVE_SHARE, EFFECTIVE_NUMBER)


def benchmark_metrics(
    equity: ArrayLike, benchmark: ArrayLike, periods_per_year: float = BARS_PER_YEAR, risk_free: ArrayLike | None = None
) -> dict[str, float]:
    """Values of `BENCHMARK_METRICS` by name, of equity [T] against the equity [T] of a benchmark.

    risk_free: [T-1], return of cash. NaN where undefined: for fewer than `MIN_RETURNS` returns, a constant benchmark,
    or an account equal to it. Raises InputError for lengths that differ and as `metrics.simple_returns`.
    """
    returns = simple_returns(equity)
    benchmark_returns = simple_returns(benchmark)
    if returns.ndim != 1 or returns.shape != benchmark_returns.shape:
        raise InputError(
            f"an account and its benchmark must cover the same bars, got {returns.shape} and {benchmark_returns.shape} "
            "returns"
        )
    if len(returns) < MIN_RETURNS:
        return {metric.name: float("nan") for metric in BENCHMARK_METRICS}
    excess, benchmark_excess = (excess_returns(curve, risk_free) for curve in (equity, benchmark))
    covariance = np.cov(excess, benchmark_excess, ddof=1)
    deviation, benchmark_deviation = np.sqrt(np.diag(covariance))
    beta = _defined_ratio(covariance[0, 1], covariance[1, 1], RISK_EPSILON**2)
    active = returns - benchmark_returns
    active_deviation = float(active.std(ddof=1))
    residuals = excess - excess.mean() - beta * (benchmark_excess - benchmark_excess.mean())
    scale = float(np.sqrt(periods_per_year))
    ratio = _defined_ratio(float(active.mean()) * scale, active_deviation)
    years = years_to_show(ratio)
    return {
        "alpha": float(excess.mean() - beta * benchmark_excess.mean()) * periods_per_year,
        "beta": beta,
        "correlation": _defined_ratio(covariance[0, 1], deviation * benchmark_deviation, RISK_EPSILON**2),
        "tracking_error": active_deviation * scale,
        "residual_tracking_error": float(np.sqrt((residuals**2).sum() / (len(residuals) - 2))) * scale,
        "information_ratio": ratio,
        "years_to_show": float("nan") if years is None else years,
        "up_capture": _capture(returns, benchmark_returns, benchmark_returns > 0, periods_per_year),
        "down_capture": _capture(returns, benchmark_returns, benchmark_returns < 0, periods_per_year),
    }


def _capture(returns: Floats, benchmark_returns: Floats, bars: Bools, periods_per_year: float) -> float:
    """Ratio of annualised compound returns over the selected bars [T-1] (Morningstar)."""
    if not bars.any():
        return float("nan")
    exponent = periods_per_year / int(bars.sum())
    growth, benchmark_growth = (float(np.prod(1 + x[bars])) ** exponent - 1 for x in (returns, benchmark_returns))
    return _defined_ratio(growth, benchmark_growth)


def holdings_metrics(weights: ArrayLike, benchmark: ArrayLike | None = None) -> dict[str, float]:
    """Mean effective number of holdings of weights [T, N], and mean active share against benchmark weights [T, N].

    Over bars with holdings (of both); NaN if there are none. Without benchmark weights, only the first.
    """
    values = {EFFECTIVE_NUMBER.name: known_mean(effective_number(weights))}
    if benchmark is not None:
        values[ACTIVE_SHARE.name] = known_mean(active_share(weights, benchmark))
    return values


def trailing_betas(returns: Floats, benchmark: Floats) -> Floats:
    """Betas [T, N] of assets to a benchmark over the last `BETA_BARS` returns, this bar's included.

    returns: [T, N], NaN where unknown. benchmark: [T]. An asset with less than half of the returns has a beta of 1.
    """
    assets = pd.DataFrame(returns)
    base = pd.DataFrame(np.repeat(benchmark[:, None], returns.shape[1], 1)).where(assets.notna())
    minimum = BETA_BARS // 2
    covariance = assets.rolling(BETA_BARS, min_periods=minimum).cov(base)
    variance = base.rolling(BETA_BARS, min_periods=minimum).var()
    betas: Floats = (covariance / variance.where(variance > RISK_EPSILON**2)).fillna(1.0).to_numpy()
    return betas


def _defined_ratio(gain: float, risk: float, smallest: float = RISK_EPSILON) -> float:
    return float(gain / risk) if abs(risk) > smallest else float("nan")


def known_mean(values: Floats) -> float:
    known_values = values[np.isfinite(values)]
    return float(known_values.mean()) if len(known_values) else float("nan")


# ---------------------------------------------------------------------- stop rule: band of the active return

BAND_LEVEL = 0.05  # share of histories that leave the band within HORIZON bars
HORIZON = 252  # bars


@dataclass(frozen=True)
class ActiveBand:
    """Lower edge of active log returns after 1 to D bars. level: share of histories below it at some bar."""

    level: float
    lower: tuple[float, ...]

    def edge(self, bars: int) -> float:
        """Lower edge after a number of bars of at least 1; beyond the last edge, the last one."""
        return self.lower[min(bars, len(self.lower)) - 1]


def active_band(
    account: ArrayLike, base: ArrayLike, seed: int = 0, *, level: float = BAND_LEVEL, horizon: int = HORIZON,
    draws: int = DRAWS,
) -> ActiveBand | None:  # fmt: skip
    """The band of the equity [T] of an account over its base [T] in a backtest.

    None for fewer than `MIN_BARS` returns, an equity that is not above 0, and an account that never left its base.
    """
    account_equity = np.asarray(account, dtype=np.float64)
    base_equity = np.asarray(base, dtype=np.float64)
    if len(account_equity) <= MIN_BARS or min(account_equity.min(), base_equity.min()) <= 0:
        return None
    active: Floats = np.diff(np.log(account_equity) - np.log(base_equity))
    if np.ptp(active) == 0:
        return None
    rng = np.random.default_rng(seed)
    rows = math.ceil(draws * horizon / len(active))  # resampled series end to end, cut into histories
    bars = resample_bars(len(active), block_length(active), rows, rng).reshape(-1)[: draws * horizon]
    sums: Floats = active[bars].reshape(draws, horizon).cumsum(1)  # [draws, D] over the first 1 to D bars
    ranks = sums.argsort(0).argsort(0)  # [draws, D] from 0, the lowest
    rank = int(np.sort(ranks.min(1))[math.floor(level * draws)])
    lower = np.sort(sums, 0)[rank]
    return ActiveBand(level, tuple(lower.tolist()))


def active_growth(account: Sequence[float], base: Sequence[float]) -> tuple[int, float]:
    """(bars, log growth of an account minus its base) over the marks, at most the last `HORIZON` bars."""
    bars = min(len(account) - 1, HORIZON)
    return bars, math.log(account[-1] / account[-1 - bars]) - math.log(base[-1] / base[-1 - bars])
