"""The headline of a report and of the page of a run: key figures."""

from __future__ import annotations

from dataclasses import dataclass

from finrl_pod.errors import count_text
from finrl_pod.evaluate.active_management import BENCHMARK_METRICS, EFFECTIVE_NUMBER
from finrl_pod.evaluate.metrics import METRIC_BY_NAME
from finrl_pod.promotion.verdict import Edge, Metrics
from finrl_pod_app.report.columns import MISSING, SLOW_BASE, display_name, metric_text, number, percent, return_interval
from finrl_pod_app.report.records import RunReport

ANNUAL_RETURN = METRIC_BY_NAME["annual_return"]
TRACKING_ERROR = next(metric for metric in BENCHMARK_METRICS if metric.name == "tracking_error")
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
    def definition(self) -> str:
        """The note as a sentence."""
        return f"{self.note[:1].upper()}{self.note[1:]}."

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
    base = "base" if report.base == SLOW_BASE else display_name(report.base)
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
        f"of {count_text(len(report.data.symbols), 'symbol')}" if report.data.symbols else "",
    )
    return [*figures[:-1], _active_return(report, metrics, base_metrics, base), figures[-1], holdings]


def tracking_error_figure(edge: Edge) -> KeyFigure:
    """Tracking error on test with the information ratio below it."""
    text = percent(edge.tracking_error, unit="%")
    ratio = f"information ratio {number(edge.information_ratio)}"
    return KeyFigure(TRACKING_ERROR.name, TRACKING_ERROR.label, text, "", TRACKING_ERROR.explanation, ratio)


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
    return KeyFigure("active_return", "Difference of CAGRs", text, "", "CAGR above the base", comparison_text)
