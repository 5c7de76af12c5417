"""The headline of a report and of the page of a run: key figures, and a small line for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from finrl_pod.evaluate.active_management import EFFECTIVE_NUMBER, effective_number
from finrl_pod.evaluate.metrics import METRIC_BY_NAME, bars_per_year, drawdown
from finrl_pod.evaluate.tearsheet import rolling_sharpe
from finrl_pod.promotion.verdict import Metrics
from finrl_pod.types import BacktestResult, Floats
from finrl_pod_app.report.builder import subject_of
from finrl_pod_app.report.columns import MISSING, display_name, metric_text, return_interval
from finrl_pod_app.report.records import RunReport

LINE_POINTS = 60  # of a small line
ANNUAL_RETURN = METRIC_BY_NAME["annual_return"]
KEY_METRICS = (
    METRIC_BY_NAME["cumulative_return"],
    ANNUAL_RETURN,
    METRIC_BY_NAME["sharpe"],
    METRIC_BY_NAME["max_drawdown"],
    METRIC_BY_NAME["turnover"],
)


@dataclass(frozen=True)
class KeyFigure:
    """One figure. key: what it measures. text: the value with its unit. note: its definition or interval.

    detail: interval or unit of the value, below it. against: value of the base. Both are empty for none.
    """

    key: str
    label: str
    text: str
    against: str
    note: str
    detail: str = ""

    @property
    def below(self) -> str:
        """Caption of the card."""
        return "; ".join(text for text in (self.detail, self.against) if text)

    @property
    def sentence(self) -> str:
        """Value, its detail in brackets, and the value of the base."""
        text = f"{self.text} ({self.detail})" if self.detail else self.text
        return f"{text}; {self.against}" if self.against else text


def key_figures(report: RunReport) -> list[KeyFigure]:
    """Return, CAGR, Sharpe ratio, drawdown, active return with its interval, turnover and effective holdings.

    Figures of the strategy that the report is about; a figure that the report does not have is a dash.
    """
    metrics = report.test.strategies.get(report.subject, {})
    base_metrics = report.test.strategies.get(report.base, {})
    base = display_name(report.base)
    figures = []
    for metric in KEY_METRICS:
        base_text = metric_text(metric, base_metrics.get(metric.name))
        base_value = f"{base} {base_text}" if base_text != MISSING else ""
        text = metric_text(metric, metrics.get(metric.name))
        figures.append(KeyFigure(metric.name, metric.label, text, base_value, metric.explanation))
    holdings = KeyFigure(
        EFFECTIVE_NUMBER.name,
        EFFECTIVE_NUMBER.label,
        metric_text(EFFECTIVE_NUMBER, metrics.get(EFFECTIVE_NUMBER.name)),
        "",
        EFFECTIVE_NUMBER.explanation,
        f"of {len(report.data.symbols)} symbols" if report.data.symbols else "",
    )
    return [*figures[:-1], _active_return(report, metrics, base_metrics, base), figures[-1], holdings]


def _active_return(report: RunReport, metrics: Metrics, base_metrics: Metrics, base: str) -> KeyFigure:
    """Mean active return per year with its interval; the difference of the CAGRs without a comparison."""
    comparison = report.added or report.comparison
    if comparison and (active := comparison.active_return):
        level = f"{100 * comparison.level:.0f}% interval"
        interval = f"over {base}; {level} {return_interval(active.low, active.high)}"
        note = f"mean annual return above {base}; {level} of the test for an edge"
        text = metric_text(ANNUAL_RETURN, active.value)
        return KeyFigure("active_return", "Active return", text, "", note, interval)
    growth = metrics.get(ANNUAL_RETURN.name)
    base_growth = base_metrics.get(ANNUAL_RETURN.name)
    value = None if growth is None or base_growth is None else growth - base_growth
    comparison_text = f"over {base}" if base else ""
    text = metric_text(ANNUAL_RETURN, value)
    return KeyFigure("active_return", "Active return", text, "", "CAGR above the base", comparison_text)


def key_figure_lines(results: Mapping[str, BacktestResult], report: RunReport) -> dict[str, list[float]]:
    """A thinned line per key figure, by its key: how it came about over the test period."""
    result = results[subject_of(results)]
    base = results.get(report.base)
    log_growth = np.log(np.maximum(result.equity / result.equity[0], 1e-12))
    lines: dict[str, Floats] = {
        "cumulative_return": result.equity / result.equity[0],
        "annual_return": log_growth,
        "sharpe": rolling_sharpe(result.equity, result.risk_free, periods=bars_per_year(result.times)),
        "max_drawdown": drawdown(result.equity),
        "turnover": 0.5 * np.cumsum(result.turnover),
        "effective_number": effective_number(result.weights),
    }
    if base is not None:
        lines["active_return"] = log_growth - np.log(np.maximum(base.equity / base.equity[0], 1e-12))
    return {key: points for key, values in lines.items() if (points := _thinned(values))}


def _thinned(values: Floats) -> list[float]:
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return []
    return [float(finite[i]) for i in np.unique(np.linspace(0, len(finite) - 1, LINE_POINTS).astype(int))]
