"""The headline of a report: key figures, for the top of the page and of the run's page in the dashboard.

Reads the report's object only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finrl_pod.evaluate.benchmark_metrics import EFFECTIVE_NUMBER
from finrl_pod.evaluate.metrics import METRIC_BY_NAME
from finrl_pod_app.report.columns import CHAMPION, MISSING, display_name, metric_text, return_interval

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

    detail: interval or unit of the value, below it. against: the base's value. Both are empty for none.
    """

    key: str
    label: str
    text: str
    against: str
    note: str
    detail: str = ""

    @property
    def below(self) -> str:
        """What stands below the value on a card."""
        return "; ".join(part for part in (self.detail, self.against) if part)

    @property
    def sentence(self) -> str:
        """Value, its detail in brackets, and the base's value."""
        text = f"{self.text} ({self.detail})" if self.detail else self.text
        return f"{text}; {self.against}" if self.against else text


def key_figures(document: Mapping[str, Any]) -> list[KeyFigure]:
    """Return, CAGR, Sharpe ratio, drawdown, active return with its interval, turnover and effective holdings.

    Of the strategy that the report is about; figures that a report does not have are a dash.
    """
    test = document.get("test") or {}
    strategies = test.get("strategies") or {}
    name = CHAMPION if CHAMPION in strategies else next(iter(strategies), "")
    own = strategies.get(name) or {}
    added = document.get("added") or document.get("comparison") or {}
    base = str(added.get("base") or test.get("benchmark") or "")
    other, shown = strategies.get(base) or {}, display_name(base)

    figures = []
    for metric in KEY_METRICS:
        base_text = metric_text(metric, other.get(metric.name))
        against = f"{shown} {base_text}" if base_text != MISSING else ""
        text = metric_text(metric, own.get(metric.name))
        figures.append(KeyFigure(metric.name, metric.label, text, against, metric.explanation))
    symbols = (document.get("data") or {}).get("symbols")
    text = metric_text(EFFECTIVE_NUMBER, own.get(EFFECTIVE_NUMBER.name))
    detail = f"of {len(symbols)} symbols" if symbols else ""
    holdings = KeyFigure(EFFECTIVE_NUMBER.name, EFFECTIVE_NUMBER.label, text, "", EFFECTIVE_NUMBER.explanation, detail)
    return [*figures[:-1], _active_return(own, other, added, shown), figures[-1], holdings]


def _active_return(own: Mapping[str, Any], other: Mapping[str, Any], added: Mapping[str, Any], shown: str) -> KeyFigure:
    """Mean active return per year with its interval; the difference of the CAGRs without a comparison."""
    found = added.get("active_return")
    if found:
        level = f"{100 * added['level']:.0f}% interval"
        interval = f"over {shown}; {level} {return_interval(found['low'], found['high'])}"
        note = f"mean annual return above {shown}; {level} of the test for an edge"
        return KeyFigure(
            "active_return", "Active return", metric_text(ANNUAL_RETURN, found["value"]), "", note, interval
        )
    mine, theirs = own.get("annual_return"), other.get("annual_return")
    value = None if mine is None or theirs is None else mine - theirs
    over = f"over {shown}" if shown else ""
    return KeyFigure(
        "active_return", "Active return", metric_text(ANNUAL_RETURN, value), "", "CAGR above the base", over
    )
