"""Load the prices of a config, and find the bars of a backtest period."""

from __future__ import annotations

import numpy as np
import pandas as pd

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.panel import between, select
from finrl_pod.data.splits import CALENDAR_SLACK, Span, make_splits
from finrl_pod.data.store import Store
from finrl_pod.errors import ConfigError, DataError
from finrl_pod.settings.run import BUILT_IN_SPLITS, EnvironmentConfig, RunConfig, SplitConfig
from finrl_pod.types import Panel
from finrl_pod_app.setup.presets import propose_splits


def load_panel(config: RunConfig) -> Panel:
    """The panel of a config with its selection of symbols.

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
    is_scaled = panel.adjusted or panel.dividend is not None  # with dividends in cash, for splits
    if is_scaled and not rules.adjusted_shares and (rules.whole_shares or rules.per_share):
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
            f'environment.half_spread = "from data" needs spreads, and {panel.name!r} has none; import a column '
            '"spread", or set half_spread = "constant"'
        )
    unknown = (panel.tradable & np.isnan(panel.spread)).sum(0)  # [N]
    incomplete_symbols = [panel.symbols[n] for n in np.flatnonzero(unknown)]
    if incomplete_symbols:
        count = unknown[unknown > 0][0]
        note = f" ({len(incomplete_symbols) - 1} more tickers lack some)" * (len(incomplete_symbols) > 1)
        raise ConfigError(
            f'environment.half_spread = "from data" needs a spread on every bar, but {incomplete_symbols[0]} in '
            f"{panel.name!r} has none on {count} of its bars{note}; complete them, or choose other tickers "
            "with data.symbols"
        )


def backtest_period(
    panel: Panel, start: str | None, end: str | None, splits: SplitConfig | None = None, split: str = "test"
) -> tuple[int, int]:
    """First and last bar of a backtest from `start` to `end`.

    A missing date is taken from `split` ("train", "validation" or "test") of `splits`, or from the data for the split
    "all" and without splits. Raises DataError for invalid dates, a start after the end, dates more than a week outside
    the data, and fewer than two bars.
    """
    is_whole = splits is None or split == "all"
    if start is None and end is None and not is_whole:
        assert splits is not None
        span: Span = getattr(make_splits(panel.times, splits), split)
        return span.first, span.last
    data = pd.Timestamp(panel.times[0]), pd.Timestamp(panel.times[-1])
    split_dates = (None, None) if is_whole else getattr(splits, split)
    opening, closing = start or split_dates[0], end or split_dates[1]
    low = first_moment(opening, "the start") if opening else data[0]
    high = last_moment(closing, "the end") if closing else data[1]
    if start and end and low > high:
        raise DataError(f"the start {low.date()} of a backtest is after its end {high.date()}: swap the dates")
    slack = CALENDAR_SLACK
    if (start and not data[0] - slack <= low <= data[1] + slack) or (
        end and not data[0] - slack <= high.floor("D") <= data[1] + slack
    ):
        dates = " to ".join(([str(low.date())] if start else []) + ([str(high.date())] if end else []))
        subject = "period" if start and end else "start" if start else "end"
        raise DataError(
            f"the {subject} {dates} of a backtest exceeds the data, {data[0].date()} to "
            f"{data[1].date()}; choose dates within"
        )
    if low > high:
        end_name, date = ("start", start) if start else ("end", end)
        side = f"ends on {high.date()}" if start else f"starts on {low.date()}"
        raise DataError(
            f"the {end_name} {date} of a backtest is outside the {'data' if is_whole else f'{split} period'}: this "
            f"{side}; choose a date within, or give both a start and an end"
        )
    period = between(panel, low, high)
    if len(period.times) < 2:
        raise DataError(f"a backtest needs at least two bars, {low.date()} to {high.date()} has one; widen the dates")
    first = int((panel.times < period.times[0]).sum())
    return first, first + len(period.times) - 1


def splits_of_panel(panel: Panel) -> SplitConfig:
    """Splits of a panel that no config describes: the default ones if they fit, else 70, 15 and 15 percent."""
    first, last = (panel.times[i].astype("datetime64[D]").item() for i in (0, -1))
    return propose_splits(first, last, BUILT_IN_SPLITS.get(panel.name))
