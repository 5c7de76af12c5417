"""Figures of one run: equity with drawdown, allocation, and the small lines of its key figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from finrl_pod.evaluate.active_management import effective_number
from finrl_pod.evaluate.metrics import bars_per_year, drawdown
from finrl_pod.evaluate.tearsheet import rolling_sharpe
from finrl_pod.types import BacktestResult, Floats
from finrl_pod_app.report import charts
from finrl_pod_app.report.builder import subject_of
from finrl_pod_app.report.records import Band, RunReport

SMALL_POINTS = 60


def equity(results: Mapping[str, BacktestResult], band: Band | None = None, *, all_baselines: bool = False) -> Any:
    """The report's chart of equity and drawdown, with a legend. all_baselines: beyond the report's references."""
    figure = charts.equity_and_drawdown(results, band)
    if not all_baselines:
        shown = {subject_of(results), *charts.reference_names(results), "band"}
        figure.data = [trace for trace in figure.data if trace.meta in shown]
    figure.update_layout(legend={"traceorder": "reversed"})
    return figure


def allocation(result: BacktestResult) -> Any:
    """The report's chart of weights over time."""
    figure = charts.stacked_weights(result)
    figure.update_yaxes(tickformatstops=charts.PERCENT_TICKS, title="share of equity")
    return figure


def small_lines(results: Mapping[str, BacktestResult], report: RunReport) -> dict[str, list[float]]:
    """A thinned line per key figure, by its key: how it came about over the test period."""
    own = results[subject_of(results)]
    base = results.get(report.base)
    growth = own.equity / own.equity[0]
    lines: dict[str, Floats] = {
        "cumulative_return": growth,
        "annual_return": np.log(np.maximum(growth, 1e-12)),
        "sharpe": rolling_sharpe(own.equity, own.risk_free, periods=bars_per_year(own.times)),
        "max_drawdown": drawdown(own.equity),
        "turnover": 0.5 * np.cumsum(own.turnover),
        "effective_number": effective_number(own.weights),
    }
    if base is not None:
        lines["active_return"] = np.log(np.maximum(growth, 1e-12)) - np.log(
            np.maximum(base.equity / base.equity[0], 1e-12)
        )
    return {key: thinned for key, values in lines.items() if (thinned := _thinned(values))}


def _thinned(values: Floats) -> list[float]:
    known = values[np.isfinite(values)]
    if len(known) < 2:
        return []
    return [float(known[i]) for i in np.unique(np.linspace(0, len(known) - 1, SMALL_POINTS).astype(int))]
