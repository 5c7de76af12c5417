"""How a strategy's numbers are named, ordered and written: the same in the terminal and in the report."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MISSING = "–"
CHAMPION = "champion"


@dataclass(frozen=True)
class Column:
    """A metric. key: its name in report.json; short: a heading; kind: how its number is written; note: its rule."""

    key: str
    short: str
    kind: Literal["percent", "ratio", "currency", "times"]
    note: str

    @property
    def unit(self) -> str:
        """What stands below the heading."""
        return {"percent": "%", "ratio": "", "currency": "currency", "times": "× a year"}[self.kind]


STRATEGY_COLUMNS = (
    Column("cumulative_return", "return", "percent", "over all test days"),
    Column("annual_return", "a year", "percent", "compound return a year"),
    Column("annual_volatility", "volatility", "percent", "standard deviation of daily returns, a year"),
    Column("sharpe", "Sharpe", "ratio", "mean over standard deviation of daily returns, a year"),
    Column("sortino", "Sortino", "ratio", "mean over downside deviation, a year"),
    Column("calmar", "Calmar", "ratio", "return a year over the largest drawdown"),
    Column("max_drawdown", "drawdown", "percent", "largest fall from a peak"),
    Column("turnover", "turnover", "times", "half of the value traded, a year, as a multiple of equity"),
    Column("costs_paid", "costs", "currency", "paid in all"),
)


def show(column: Column, value: float | None) -> str:
    """A number in its column's unit; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return MISSING
    if column.kind == "percent":
        return f"{100 * value:.1f}"
    if column.kind == "currency":
        return f"{value:,.0f}"
    return f"{value:.2f}"


def in_order(names: Iterable[str]) -> list[str]:
    """The champion first, then as they come."""
    return sorted(names, key=lambda name: name != CHAMPION)


def readable(name: str) -> str:
    """A name for people: equal_weight -> equal weight."""
    return name.replace("_", " ")
