"""Strategies against a benchmark: statistics of active returns, their growth, and rolling alpha and beta."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from finrl_pod.evaluate.benchmark_metrics import BENCHMARK_METRICS, benchmark_metrics
from finrl_pod.evaluate.metrics import bars_per_year, excess_returns, simple_returns
from finrl_pod.evaluate.tearsheet import ROLLING_BARS
from finrl_pod.types import Floats
from finrl_pod_app.dashboard.queries.comparison import Curve

COLUMNS = ("strategy", "active_return", *(metric.name for metric in BENCHMARK_METRICS))


def active_table(curves: Mapping[str, Curve], benchmark: str) -> pd.DataFrame:
    """One row per strategy other than the benchmark: annual active return (mean), and `BENCHMARK_METRICS`.

    Strategies whose bars differ from those of the benchmark are omitted.
    """
    rows = []
    for name, curve in comparable(curves, benchmark).items():
        periods = bars_per_year(curve.times)
        found = benchmark_metrics(curve.equity, curves[benchmark].equity, periods, curve.risk_free)
        mean = periods * float(active_returns(curve, curves[benchmark]).mean())
        rows.append({"strategy": name, "active_return": mean, **found})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def comparable(curves: Mapping[str, Curve], benchmark: str) -> dict[str, Curve]:
    """The other curves over the same bars as the benchmark, of at least three bars."""
    base = curves[benchmark]
    return {
        name: curve
        for name, curve in curves.items()
        if name != benchmark and len(curve.times) > 2 and np.array_equal(curve.times, base.times)
    }


def active_returns(curve: Curve, base: Curve) -> Floats:
    """Simple returns [T-1] less those of the benchmark."""
    return simple_returns(curve.equity) - simple_returns(base.equity)


def active_growth(curve: Curve, base: Curve) -> Floats:
    """Growth [T] of the strategy over that of the benchmark, minus one; 0 at first."""
    ratio: Floats = (curve.equity / curve.equity[0]) / (base.equity / base.equity[0]) - 1
    return ratio


def rolling_alpha_beta(curve: Curve, base: Curve, window: int = ROLLING_BARS) -> tuple[Floats, Floats]:
    """Annual alpha and beta [T] of the regression on the benchmark over the last `window` returns; NaN before."""
    own = pd.Series(excess_returns(curve.equity, curve.risk_free))
    other = pd.Series(excess_returns(base.equity, curve.risk_free))
    variance = other.rolling(window).var()
    beta = own.rolling(window).cov(other) / variance.where(variance > 0)
    alpha = (own.rolling(window).mean() - beta * other.rolling(window).mean()) * bars_per_year(curve.times)
    return tuple(np.concatenate([[np.nan], values.to_numpy()]) for values in (alpha, beta))  # type: ignore[return-value]
