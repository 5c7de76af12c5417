"""Bars of several minutes, made from minute bars: the window of a decision within the session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

import numpy as np

from finrl_pod.paper.domain.port import COLUMNS, BarTable, DataFeed
from finrl_pod.paper.domain.records import Session
from finrl_pod.paper.domain.schedule import Calendar, TradingCycle
from finrl_pod.paper.execution.decision import PriceFetchRecorder, table_sha256
from finrl_pod.paper.execution.price_check import MAX_JUMP, CheckedPrices, check_minute_prices
from finrl_pod.paper.settings import PaperConfig


def fetch_minute_prices(
    feed: DataFeed, config: PaperConfig, cycle: TradingCycle, record_fetch: PriceFetchRecorder
) -> tuple[CheckedPrices, dict[str, Decimal]]:
    """Fetch the last `data.window` bars until the cycle time, check them, and return them with the closes before.

    The second result has the last closes of earlier sessions by symbol.

    Raises BrokerError if the feed does not answer and DataError if it lacks the cycle bar.
    """
    assert cycle.time is not None
    minutes = config.intraday.minutes
    length = timedelta(minutes=minutes)
    in_session = max((cycle.session.close - cycle.session.open) // length, 1)
    count = -(-config.data.window // in_session) + 1  # sessions, one more for the closes before
    days = Calendar().sessions(cycle.bar - timedelta(days=2 * count + 10), cycle.bar)[-count - 1 :]
    table = feed.minute_bars(config.symbols, days[0].open, cycle.time, "all")
    record_fetch(table, "all", table_sha256(table))
    bars = aggregate(table, days, length)
    window = bars.rows(slice(-config.data.window, None))
    earlier = bars.times < np.datetime64(cycle.session.open.replace(tzinfo=None), "ns")
    columns = (column[np.isfinite(column) & (column > 0)] for column in bars.close[earlier].T)
    closes = {s: Decimal(repr(float(c[-1]))) for s, c in zip(bars.symbols, columns, strict=True) if len(c)}
    return check_minute_prices(window, cycle.time - length, minutes, MAX_JUMP), closes


def aggregate(table: BarTable, sessions: Sequence[Session], length: timedelta) -> BarTable:
    """Bars of `length` from the open of each session on, from minute bars; minutes outside the sessions are left out.

    A bar has the first open, the highest high, the lowest low, the last close and the summed volume of its minutes; it
    is NaN for a symbol without a minute in it. Rows in which no symbol has one are missing.
    """
    step = np.timedelta64(length, "ns")
    starts = np.full(len(table.times), np.datetime64("NaT", "ns"))
    for session in sessions:
        first, last = (np.datetime64(t.replace(tzinfo=None), "ns") for t in (session.open, session.close))
        inside = (table.times >= first) & (table.times < last)
        starts[inside] = first + (table.times[inside] - first) // step * step
    rows = np.flatnonzero(~np.isnat(starts))
    times, first_row = np.unique(starts[rows], return_index=True)
    if not len(times):
        return table.rows(slice(0, 0))
    values = {name: getattr(table, name)[rows] for name in COLUMNS}
    has_bar = np.isfinite(values["close"])
    row = np.arange(len(rows))[:, None]
    opening = np.minimum.reduceat(np.where(has_bar, row, len(rows)), first_row)  # [bars, N], row of the first minute
    closing = np.maximum.reduceat(np.where(has_bar, row, -1), first_row)
    is_missing = closing < 0
    column = np.arange(len(table.symbols))
    columns = {
        "open": values["open"][opening.clip(max=len(rows) - 1), column],
        "high": np.fmax.reduceat(values["high"], first_row),
        "low": np.fmin.reduceat(values["low"], first_row),
        "close": values["close"][closing, column],
        "volume": np.add.reduceat(np.nan_to_num(values["volume"]), first_row),
    }
    columns = {name: np.where(is_missing, np.nan, bars) for name, bars in columns.items()}
    return BarTable(times=times, symbols=table.symbols, feed=table.feed, **columns)
