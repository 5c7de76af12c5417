"""Metrics of an account against a benchmark over the same bars: regression, tracking error, and capture ratios.

Simple returns between consecutive marks. Alpha and beta come from a regression of excess returns over cash on the
excess returns of the benchmark (Jensen 1968); tracking error and information ratio are computed from active returns
(Grinold and Kahn 2000). Standard deviations are of samples (n - 1); annual figures scale by the number of
bars in a year.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
from finrl_pod.prices import Floats

MIN_RETURNS = 3  # fewer leave no degree of freedom to the regression


@dataclass(frozen=True)
class BenchmarkComparison:
    """Returns [T-1] of an account and of its benchmark over the same bars, simple and in excess of cash."""

    returns: Floats
    benchmark_returns: Floats
    excess: Floats
    benchmark_excess: Floats
    periods_per_year: float

    @cached_property
    def covariance(self) -> Floats:
        """Sample covariance [2, 2] of the excess returns, the account first."""
        return np.asarray(np.cov(self.excess, self.benchmark_excess, ddof=1), dtype=np.float64)

    @cached_property
    def active(self) -> Floats:
        """Active returns [T-1]."""
        return self.returns - self.benchmark_returns

    @property
    def beta(self) -> float:
        """Slope of the regression; NaN for a constant benchmark."""
        return _ratio(self.covariance[0, 1], self.covariance[1, 1], RISK_EPSILON**2)

    @property
    def alpha(self) -> float:
        """Annual intercept of the regression."""
        return float(self.excess.mean() - self.beta * self.benchmark_excess.mean()) * self.periods_per_year

    @property
    def correlation(self) -> float:
        """Correlation of the excess returns."""
        deviation, benchmark_deviation = np.sqrt(np.diag(self.covariance))
        return _ratio(self.covariance[0, 1], deviation * benchmark_deviation, RISK_EPSILON**2)

    @property
    def tracking_error(self) -> float:
        """Annual standard deviation of active returns."""
        return float(self.active.std(ddof=1)) * float(np.sqrt(self.periods_per_year))

    @property
    def information_ratio(self) -> float:
        """Annual mean active return over the tracking error."""
        return _ratio(float(self.active.mean()) * float(np.sqrt(self.periods_per_year)), float(self.active.std(ddof=1)))

    def capture(self, bars: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
        """Ratio of annualised compound returns over the selected bars [T-1] (Morningstar)."""
        if not bars.any():
            return float("nan")
        exponent = self.periods_per_year / int(bars.sum())
        growth = float(np.prod(1 + self.returns[bars])) ** exponent - 1
        return _ratio(growth, float(np.prod(1 + self.benchmark_returns[bars])) ** exponent - 1)


BENCHMARK_METRICS: tuple[Metric[BenchmarkComparison], ...] = (
    Metric(
        "alpha",
        lambda pair: pair.alpha,
        "alpha",
        "Alpha",
        PERCENT,
        "annual intercept of the regression of excess returns on the excess returns of the benchmark",
        "higher",
    ),
    Metric(
        "beta",
        lambda pair: pair.beta,
        "beta",
        "Beta",
        RATIO,
        "slope of the regression of excess returns on the excess returns of the benchmark",
    ),
    Metric(
        "correlation",
        lambda pair: pair.correlation,
        "correlation",
        "Correlation",
        RATIO,
        "correlation of the excess returns with the excess returns of the benchmark",
    ),
    Metric(
        "tracking_error",
        lambda pair: pair.tracking_error,
        "TE",
        "Tracking error",
        PERCENT,
        "annualised standard deviation of active returns",
    ),
    Metric(
        "information_ratio",
        lambda pair: pair.information_ratio,
        "IR",
        "Information ratio",
        RATIO,
        "annualised mean active return over tracking error",
        "higher",
    ),
    Metric(
        "up_capture",
        lambda pair: pair.capture(pair.benchmark_returns > 0),
        "up",
        "Up capture",
        RATIO,
        "compound return on the bars on which the benchmark rose, over the compound return of the benchmark",
        "higher",
    ),
    Metric(
        "down_capture",
        lambda pair: pair.capture(pair.benchmark_returns < 0),
        "down",
        "Down capture",
        RATIO,
        "compound return on the bars on which the benchmark fell, over the compound return of the benchmark; near 1 "
        "over years of daily bars, where falls compound to almost -100%",
        "lower",
    ),
)
ACTIVE_SHARE: Metric[tuple[ArrayLike, ArrayLike]] = Metric(
    "active_share",
    lambda weights: known_mean(active_share(*weights)),
    "active share",
    "Active share",
    PERCENT,
    "half the sum of absolute differences between the weights of the account and of the benchmark",
)
EFFECTIVE_NUMBER: Metric[ArrayLike] = Metric(
    "effective_number",
    lambda weights: known_mean(effective_number(weights)),
    "effective holdings",
    "Effective holdings",
    COUNT,
    "(sum of weights)² over the sum of squared weights, mean over the bars: equal positions that are as concentrated",
)
COMPARISON_METRICS: tuple[Metric[Any], ...] = (*BENCHMARK_METRICS, ACTIVE_SHARE, EFFECTIVE_NUMBER)


def benchmark_metrics(
    equity: ArrayLike,
    benchmark: ArrayLike,
    periods_per_year: float = BARS_PER_YEAR,
    risk_free: ArrayLike | None = None,
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
    pair = BenchmarkComparison(
        returns,
        benchmark_returns,
        excess_returns(equity, risk_free),
        excess_returns(benchmark, risk_free),
        periods_per_year,
    )
    return {metric.name: metric.function(pair) for metric in BENCHMARK_METRICS}


def holdings_metrics(weights: ArrayLike, benchmark: ArrayLike | None = None) -> dict[str, float]:
    """Mean effective number of holdings of weights [T, N], and mean active share against benchmark weights [T, N].

    Over bars with holdings (of both); NaN if there are none. Without benchmark weights, only the first.
    """
    values = {EFFECTIVE_NUMBER.name: EFFECTIVE_NUMBER.function(weights)}
    if benchmark is not None:
        values[ACTIVE_SHARE.name] = ACTIVE_SHARE.function((weights, benchmark))
    return values


def _ratio(gain: float, risk: float, smallest: float = RISK_EPSILON) -> float:
    return float(gain / risk) if abs(risk) > smallest else float("nan")


def known_mean(values: Floats) -> float:
    known_values = values[np.isfinite(values)]
    return float(known_values.mean()) if len(known_values) else float("nan")
