"""Load the prices of a config, and find the bars of a backtest period."""

from __future__ import annotations

import numpy as np
import pandas as pd

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.panel import between, select
from finrl_pod.data.splits import CALENDAR_SLACK, Span, make_splits
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError, DataError
from finrl_pod.settings.run import EnvironmentConfig, RunConfig, SplitConfig
from finrl_pod.types import Panel


def load_panel(config: RunConfig) -> Panel:
    """The config's panel with its selection of symbols.

    Raises ConfigError for whole shares or costs per share on adjusted prices, unless the config allows them, and for
    spreads from data that lack them.
    """
    panel = select(Store().load(config.data.name), config.data.symbols)
    check_prices(config.environment, panel)
    return panel


def check_prices(rules: EnvironmentConfig, panel: Panel) -> None:
    """Raise ConfigError if the rules count shares of adjusted prices and `adjusted_shares` is not set, or charge
    spreads that the panel lacks.
    """
    scaled = panel.adjusted or panel.dividend is not None  # with dividends in cash, for splits
    if scaled and not rules.adjusted_shares and (rules.whole_shares or rules.per_share):
        name = "whole_shares" if rules.whole_shares else "per_share"
        raise ConfigError(
            f"environment.{name} counts shares, but the prices of {panel.name!r} are adjusted, so past counts differ "
            "from those traded; set environment.adjusted_shares = true to use them anyway"
        )
    if rules.half_spread == "from data":
        _check_spreads(panel)


def _check_spreads(panel: Panel) -> None:
    if panel.spread is None:
        raise ConfigError(
            f'environment.half_spread = "from data" needs spreads, which {panel.name!r} lacks; import a column '
            '"spread", or set half_spread = "constant"'
        )
    unknown = (panel.tradable & np.isnan(panel.spread)).sum(0)  # [N]
    without = [panel.symbols[n] for n in np.flatnonzero(unknown)]
    if without:
        count, others = unknown[unknown > 0][0], f" ({len(without) - 1} more tickers lack some)" * (len(without) > 1)
        raise ConfigError(
            f'environment.half_spread = "from data" needs a spread on every bar, but {without[0]} in {panel.name!r} '
            f"has none on {count} of its bars{others}; complete them, or choose other tickers with data.symbols"
        )


def backtest_period(
    panel: Panel, start: str | None, end: str | None, splits: SplitConfig | None = None, split: str = "test"
) -> tuple[int, int]:
    """First and last bar of a backtest from `start` to `end`.

    A missing date is that of `split` ("train", "validation" or "test") of `splits`, or that of the data for the split
    "all" and without splits. Raises DataError for invalid dates, a start after the end, dates more than a week outside
    the data, and fewer than two bars.
    """
    whole = splits is None or split == "all"
    if start is None and end is None and not whole:
        assert splits is not None
        span: Span = getattr(make_splits(panel.times, splits), split)
        return span.first, span.last
    data = pd.Timestamp(panel.times[0]), pd.Timestamp(panel.times[-1])
    usual = (None, None) if whole else getattr(splits, split)
    opening, closing = start or usual[0], end or usual[1]
    low = first_moment(opening, "the start") if opening else data[0]
    high = last_moment(closing, "the end") if closing else data[1]
    if start and end and low > high:
        raise DataError(f"a backtest's start {low.date()} is after its end {high.date()}: swap the dates")
    slack = CALENDAR_SLACK
    if (start and not data[0] - slack <= low <= data[1] + slack) or (
        end and not data[0] - slack <= high.floor("D") <= data[1] + slack
    ):
        given = " to ".join(([str(low.date())] if start else []) + ([str(high.date())] if end else []))
        what = "period" if start and end else "start" if start else "end"
        raise DataError(
            f"a backtest's {what} {given} exceeds the data, which covers {data[0].date()} to "
            f"{data[1].date()}; choose dates within"
        )
    if low > high:
        at, date = ("start", start) if start else ("end", end)
        side = f"ends on {high.date()}" if start else f"starts on {low.date()}"
        raise DataError(
            f"a backtest's {at} {date} is outside the {'data' if whole else f'{split} period'}, which {side}; choose a "
            f"date within, or give both a start and an end"
        )
    part = between(panel, low, high)
    if len(part.times) < 2:
        raise DataError(f"a backtest needs at least two bars, {low.date()} to {high.date()} has one; widen the dates")
    first = int((panel.times < part.times[0]).sum())
    return first, first + len(part.times) - 1
