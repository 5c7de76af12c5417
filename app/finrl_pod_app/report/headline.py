"""The headline of a report: key figures, for the top of the page and of the run's page in the dashboard.

Reads the report's object only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finrl_pod_app.report.columns import CHAMPION, MISSING, display_name, number, percent, return_interval


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

    def of_base(text: str) -> str:
        return f"{shown} {text}" if other and text != MISSING else ""

    return [
        KeyFigure(
            "cumulative_return",
            "Total return",
            _signed(own.get("cumulative_return")),
            of_base(_signed(other.get("cumulative_return"))),
            "over the whole period, after costs",
        ),
        KeyFigure(
            "annual_return",
            "CAGR",
            _signed(own.get("annual_return")),
            of_base(_signed(other.get("annual_return"))),
            "compound annual growth rate",
        ),
        KeyFigure(
            "sharpe",
            "Sharpe ratio",
            number(own.get("sharpe")),
            of_base(number(other.get("sharpe"))),
            "annualised mean excess return over volatility",
        ),
        KeyFigure(
            "max_drawdown",
            "Drawdown",
            _signed(own.get("max_drawdown")),
            of_base(_signed(other.get("max_drawdown"))),
            "largest decline from a peak",
        ),
        _active_return(own, other, added, shown),
        KeyFigure(
            "turnover",
            "Turnover",
            _times(own.get("turnover")),
            of_base(_times(other.get("turnover"))),
            "one-sided, per year: half of the value traded, as a multiple of equity",
        ),
        KeyFigure(
            "effective_number",
            "Effective holdings",
            number(own.get("effective_number"), 1),
            "",
            "(sum of weights)² over the sum of squared weights, mean over the bars",
            f"of {len(symbols)} symbols" if (symbols := (document.get("data") or {}).get("symbols")) else "",
        ),
    ]


def _active_return(own: Mapping[str, Any], other: Mapping[str, Any], added: Mapping[str, Any], shown: str) -> KeyFigure:
    """Mean active return per year with its interval; the difference of the CAGRs without a comparison."""
    found = added.get("active_return")
    if found:
        level = f"{100 * added['level']:.0f}% interval"
        interval = f"over {shown}; {level} {return_interval(found['low'], found['high'])}"
        note = f"mean annual return above {shown}; {level} of the test for an edge"
        return KeyFigure("active_return", "Active return", _signed(found["value"]), "", note, interval)
    mine, theirs = own.get("annual_return"), other.get("annual_return")
    value = None if mine is None or theirs is None else mine - theirs
    over = f"over {shown}" if shown else ""
    return KeyFigure("active_return", "Active return", _signed(value), "", "CAGR above the base", over)


def _signed(value: float | None) -> str:
    return percent(value, sign=True, unit="%")


def _times(value: float | None) -> str:
    text = number(value)
    return text if text == MISSING else f"{text}×"
