"""Definitions of statistics that are not metrics, for tooltips, and the columns of tables that several pages show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from finrl_pod.evaluate.benchmark_metrics import BENCHMARK_METRICS
from finrl_pod.evaluate.metrics import METRIC_BY_NAME, METRICS, Metric
from finrl_pod_app.dashboard import theme

FORMATS = {"percent": "percent", "ratio": "%.2f", "currency": "localized", "times": "%.2f×", "count": "%.1f"}  # by unit
DEFINITIONS = {
    "backtest_difference": "Growth of the paper account minus growth of the replayed backtest over the same sessions.",
    "implementation_shortfall": "Fill price against the reference price of the decision, in basis points (1 bp = "
    "0.01%). Includes the move of the market in between. Positive is a cost.",
    "validation_score": "Sharpe ratio on the validation period, by which the tournament selects its champion. The "
    "test period is not used.",
    "samples_per_second": "Environment steps per second over all agents, including the time for learning.",
    "trials": "Strategies ever evaluated on this data. More trials raise the best Sharpe ratio by chance; the "
    "deflated Sharpe ratio corrects for it.",
    "distinct_trials": "Clusters among the trials: trials that behave alike count as one.",
    "effective_trials": "Independent trials whose best gains as much by chance; the p-value allows for them.",
    "looks": "How often results on the test period were viewed. Each further look makes a chance success more likely, "
    "so the rules become stricter.",
    "psr": "Probabilistic Sharpe ratio: 1 less the p-value of the test that the true Sharpe ratio is zero or less, "
    "given length, skewness and kurtosis. Not the probability that it is positive (Bailey and López de Prado 2012).",
    "dsr": "Deflated Sharpe ratio: the probabilistic Sharpe ratio against the best of as many chance trials as were "
    "counted (Bailey and López de Prado 2014).",
    "pbo": "Probability of backtest overfitting: how often the best trial on one half of the period ranks below the "
    "median on the other half (Bailey et al. 2017).",
    "interval": "Confidence interval (95%) from the stationary bootstrap (Politis and Romano 1994).",
}


def definition(key: str) -> str:
    """The definition of a metric or of another statistic. Raises KeyError if there is none."""
    return METRIC_BY_NAME[key].definition if key in METRIC_BY_NAME else DEFINITIONS[key]


def run_columns() -> dict[str, Any]:
    """Column configuration of the table of runs."""
    column: Any = st.column_config
    zone = theme.EXCHANGE_ZONE.key
    return {
        "name": column.TextColumn("Run", pinned=True, width="medium"),
        "status": column.TextColumn("Status"),
        "promoted": column.TextColumn("Verdict", help="Whether the champion passed every promotion rule."),
        "line": column.LineChartColumn("Equity", help="Growth of 1 of the champion on the test period.", width="small"),
        "annual_return": column.NumberColumn("CAGR", format="percent", help=definition("annual_return")),
        "sharpe": column.NumberColumn("Sharpe", format="%.2f", help=definition("sharpe")),
        "drawdown": column.NumberColumn("Drawdown", format="percent", help=definition("max_drawdown")),
        "score": column.NumberColumn("Validation", format="%.2f", help=definition("validation_score")),
        "tags": column.ListColumn("Tags"),
        "algorithm": column.TextColumn("Algorithm"),
        "data": column.TextColumn("Data", help="Price dataset."),
        "changed": column.DatetimeColumn("Updated", format="MMM D, HH:mm", timezone=zone),
    }


def benchmark_columns(frame: pd.DataFrame) -> dict[str, Any]:
    """Column configuration of a table with a row per strategy and a column per metric against a benchmark it has."""
    column: Any = st.column_config
    active = {"active_return": column.NumberColumn("Active return", format="percent", help="Mean, per year.")}
    columns = metric_columns(BENCHMARK_METRICS) | active
    return {name: config for name, config in columns.items() if name in frame.columns}


def metric_columns(metrics: Sequence[Metric[Any]] = METRICS) -> dict[str, Any]:
    """Column configuration of a table with a row per strategy and a column per metric."""
    column: Any = st.column_config
    return {"strategy": column.TextColumn("Strategy")} | {
        metric.name: column.NumberColumn(metric.label, format=FORMATS[metric.unit.name], help=metric.definition)
        for metric in metrics
    }
