"""Metrics of an account against a benchmark over the same bars: regression, tracking error, and capture ratios.

Simple returns between consecutive marks. Alpha and beta regress excess returns over cash on those of the benchmark
(Jensen 1968); tracking error and information ratio are those of the active returns (Grinold and Kahn 2000). Standard
deviations are of samples (n - 1), annual figures scale by the number of bars in a year.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.active_management import active_share, effective_number
from finrl_pod.evaluate.metrics import BARS_PER_YEAR, RISK_EPSILON, excess_returns, simple_returns
from finrl_pod.types import Floats

BENCHMARK_METRICS = (
    "alpha",
    "beta",
    "correlation",
    "tracking_error",
    "information_ratio",
    "up_capture",
    "down_capture",
)
MIN_RETURNS = 3  # fewer leave no degree of freedom to the regression


def benchmark_metrics(
    equity: ArrayLike,
    benchmark: ArrayLike,
    periods_per_year: float = BARS_PER_YEAR,
    risk_free: ArrayLike | None = None,
) -> dict[str, float]:
    """The `BENCHMARK_METRICS` of equity [T] against a benchmark's equity [T].

    alpha: annual intercept. tracking_error: annual standard deviation of active returns. information_ratio: annual mean
    active return over it. up_capture, down_capture: annualised compound return over the bars on which the benchmark
    rose (fell), over that of the benchmark (Morningstar). risk_free: [T-1], return of cash. NaN where undefined: for
    fewer than `MIN_RETURNS` returns, a constant benchmark, or an account equal to it. Raises InputError for lengths
    that differ and as `metrics.simple_returns`.
    """
    own, base = simple_returns(equity), simple_returns(benchmark)
    if own.ndim != 1 or own.shape != base.shape:
        raise InputError(
            f"an account and its benchmark must cover the same bars, got {own.shape} and {base.shape} returns"
        )
    if len(own) < MIN_RETURNS:
        return dict.fromkeys(BENCHMARK_METRICS, float("nan"))
    x, y = excess_returns(benchmark, risk_free), excess_returns(equity, risk_free)
    covariance = np.cov(y, x, ddof=1)
    deviation, base_deviation = np.sqrt(np.diag(covariance))
    beta = _ratio(covariance[0, 1], covariance[1, 1], RISK_EPSILON**2)
    active = own - base
    error = float(active.std(ddof=1))
    return {
        "alpha": float(y.mean() - beta * x.mean()) * periods_per_year,
        "beta": beta,
        "correlation": _ratio(covariance[0, 1], deviation * base_deviation, RISK_EPSILON**2),
        "tracking_error": error * float(np.sqrt(periods_per_year)),
        "information_ratio": _ratio(float(active.mean()) * float(np.sqrt(periods_per_year)), error),
        "up_capture": _capture(own[base > 0], base[base > 0], periods_per_year),
        "down_capture": _capture(own[base < 0], base[base < 0], periods_per_year),
    }


def holdings_metrics(weights: ArrayLike, benchmark: ArrayLike | None = None) -> dict[str, float]:
    """Mean effective number of holdings of weights [T, N], and mean active share against a benchmark's weights [T, N].

    Over bars with holdings (of both); NaN if there are none. Without a benchmark's weights, only the first.
    """
    found = {"effective_number": _known_mean(effective_number(weights))}
    if benchmark is not None:
        found["active_share"] = _known_mean(active_share(weights, benchmark))
    return found


def _capture(own: Floats, base: Floats, periods: float) -> float:
    """Ratio of annualised compound returns over selected bars."""
    if not len(own):
        return float("nan")
    growth = [float(np.prod(1 + returns)) ** (periods / len(own)) - 1 for returns in (own, base)]
    return _ratio(growth[0], growth[1])


def _ratio(gain: float, risk: float, smallest: float = RISK_EPSILON) -> float:
    return float(gain / risk) if abs(risk) > smallest else float("nan")


def _known_mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
