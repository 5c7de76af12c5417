"""Metrics of an account against a benchmark over the same bars: regression, tracking error, and capture ratios.

Simple returns between consecutive marks. Alpha and beta come from a regression of excess returns over cash on the
excess returns of the benchmark (Jensen 1968); tracking error and information ratio are computed from active returns
(Grinold and Kahn 2000). Standard deviations are of samples (n - 1); annual figures scale by the number of
bars in a year.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.active_management import active_share, effective_number
from finrl_pod.evaluate.metrics import (
    BARS_PER_YEAR,
    COUNT,
    PERCENT,
    RATIO,
    RISK_EPSILON,
    Metric,
    excess_returns,
    simple_returns,
)
from finrl_pod.prices import Bools, Floats

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
        "information_ratio",
        "IR",
        "Information ratio",
        RATIO,
        "annualised mean active return over tracking error",
        "higher",
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
    "(sum of weights)² over the sum of squared weights, mean over the bars: equal positions that are as concentrated",
)
COMPARISON_METRICS = (*BENCHMARK_METRICS, ACTIVE_SHARE, EFFECTIVE_NUMBER)


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
    beta = _ratio(covariance[0, 1], covariance[1, 1], RISK_EPSILON**2)
    active = returns - benchmark_returns
    active_deviation = float(active.std(ddof=1))
    scale = float(np.sqrt(periods_per_year))
    return {
        "alpha": float(excess.mean() - beta * benchmark_excess.mean()) * periods_per_year,
        "beta": beta,
        "correlation": _ratio(covariance[0, 1], deviation * benchmark_deviation, RISK_EPSILON**2),
        "tracking_error": active_deviation * scale,
        "information_ratio": _ratio(float(active.mean()) * scale, active_deviation),
        "up_capture": _capture(returns, benchmark_returns, benchmark_returns > 0, periods_per_year),
        "down_capture": _capture(returns, benchmark_returns, benchmark_returns < 0, periods_per_year),
    }


def _capture(returns: Floats, benchmark_returns: Floats, bars: Bools, periods_per_year: float) -> float:
    """Ratio of annualised compound returns over the selected bars [T-1] (Morningstar)."""
    if not bars.any():
        return float("nan")
    exponent = periods_per_year / int(bars.sum())
    growth, benchmark_growth = (float(np.prod(1 + x[bars])) ** exponent - 1 for x in (returns, benchmark_returns))
    return _ratio(growth, benchmark_growth)


def holdings_metrics(weights: ArrayLike, benchmark: ArrayLike | None = None) -> dict[str, float]:
    """Mean effective number of holdings of weights [T, N], and mean active share against benchmark weights [T, N].

    Over bars with holdings (of both); NaN if there are none. Without benchmark weights, only the first.
    """
    values = {EFFECTIVE_NUMBER.name: known_mean(effective_number(weights))}
    if benchmark is not None:
        values[ACTIVE_SHARE.name] = known_mean(active_share(weights, benchmark))
    return values


def _ratio(gain: float, risk: float, smallest: float = RISK_EPSILON) -> float:
    return float(gain / risk) if abs(risk) > smallest else float("nan")


def known_mean(values: Floats) -> float:
    known_values = values[np.isfinite(values)]
    return float(known_values.mean()) if len(known_values) else float("nan")
