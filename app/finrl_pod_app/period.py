"""Which bars a backtest covers."""

from __future__ import annotations

import pandas as pd

from finrl_pod.config import SplitConfig
from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.panel import between
from finrl_pod.data.splits import CALENDAR_SLACK, make_splits
from finrl_pod.errors import DataError
from finrl_pod.types import Panel


def backtest_period(
    panel: Panel, start: str | None, end: str | None, splits: SplitConfig | None = None
) -> tuple[int, int]:
    """First and last bar from `start` to `end`. A date that is not given is that of the test split, where `splits`
    speak of this panel, else that of the data.

    Raises DataError: what is no date, dates that run backwards or lie outside the data by more than a week, fewer
    than two bars.
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
            raise DataError(f"a backtest's start {low.date()} lies after its end {high.date()}: swap the dates")
        at, given = ("start", start) if start else ("end", end)
        side = f"ends on {high.date()}" if start else f"starts on {low.date()}"
        raise DataError(f"a backtest's {at} {given} lies outside of the period, which {side}: choose a date within")
    if low < data[0] - CALENDAR_SLACK or high.floor("D") > data[1] + CALENDAR_SLACK:
        raise DataError(
            f"the backtest from {low.date()} to {high.date()} reaches outside of the data, which covers "
            f"{data[0].date()} to {data[1].date()}: choose dates within"
        )
    part = between(panel, start, end)
    if len(part.times) < 2:
        raise DataError(f"a backtest needs two bars at least, {low.date()} to {high.date()} has one: widen the dates")
    first = int((panel.times < part.times[0]).sum())
    return first, first + len(part.times) - 1
