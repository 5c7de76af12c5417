"""Load the prices of a config, and find the bars of a backtest period."""

from __future__ import annotations

import pandas as pd

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.panel import between, select
from finrl_pod.data.splits import CALENDAR_SLACK, make_splits
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError, DataError
from finrl_pod.settings.run import EnvironmentConfig, RunConfig, SplitConfig
from finrl_pod.types import Panel


def load_panel(config: RunConfig) -> Panel:
    """The config's panel with its selection of symbols.

    Raises ConfigError for whole shares or costs per share on adjusted prices, unless the config allows them.
    """
    panel = select(Store().load(config.data.name), config.data.symbols)
    check_prices(config.environment, panel)
    return panel


def check_prices(rules: EnvironmentConfig, panel: Panel) -> None:
    """Raise ConfigError if the rules count shares of adjusted prices and `adjusted_shares` is not set."""
    if panel.adjusted and not rules.adjusted_shares and (rules.whole_shares or rules.per_share):
        name = "whole_shares" if rules.whole_shares else "per_share"
        raise ConfigError(
            f"environment.{name} counts shares, but the prices of {panel.name!r} are adjusted, so past counts differ "
            "from those traded; set environment.adjusted_shares = true to use them anyway"
        )


def backtest_period(
    panel: Panel, start: str | None, end: str | None, splits: SplitConfig | None = None
) -> tuple[int, int]:
    """First and last bar of a backtest from `start` to `end`.

    A missing date is that of the test split of `splits`, if given, else that of the data. Raises DataError for invalid
    dates, a start after the end, dates more than a week outside the data, and fewer than two bars.
    """
    if start is None and end is None and splits is not None:
        span = make_splits(panel.times, splits).test
        return span.first, span.last
    test = splits.test if splits is not None else (None, None)
    start, end = start or test[0], end or test[1]
    data = pd.Timestamp(panel.times[0]), pd.Timestamp(panel.times[-1])
    low = first_moment(start, "the start") if start else data[0]
    high = last_moment(end, "the end") if end else data[1]
    if low > high:
        if start and end:
            raise DataError(f"a backtest's start {low.date()} is after its end {high.date()}: swap the dates")
        at, given = ("start", start) if start else ("end", end)
        side = f"ends on {high.date()}" if start else f"starts on {low.date()}"
        raise DataError(f"a backtest's {at} {given} is outside the period, which {side}; choose a date within")
    if low < data[0] - CALENDAR_SLACK or high.floor("D") > data[1] + CALENDAR_SLACK:
        raise DataError(
            f"the backtest from {low.date()} to {high.date()} exceeds the data, which covers "
            f"{data[0].date()} to {data[1].date()}; choose dates within"
        )
    part = between(panel, start, end)
    if len(part.times) < 2:
        raise DataError(f"a backtest needs at least two bars, {low.date()} to {high.date()} has one; widen the dates")
    first = int((panel.times < part.times[0]).sum())
    return first, first + len(part.times) - 1
