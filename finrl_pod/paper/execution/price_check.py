"""Fetches and checks prices before a decision: up to date, valid, and no unexplained jump.

A symbol that fails is not traded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal

import numpy as np

from finrl_pod.data.panel import make_panel
from finrl_pod.errors import DataError
from finrl_pod.paper.domain.port import COLUMNS, BarTable, DataFeed
from finrl_pod.paper.domain.records import CorporateAction, Session
from finrl_pod.paper.domain.schedule import Calendar, TradingCycle
from finrl_pod.paper.settings import DataSettings, PaperConfig
from finrl_pod.types import Bools, Floats, Panel

PriceFetchRecorder = Callable[[BarTable, str], None]  # records a price query: table, adjustment
RAW_HISTORY = timedelta(days=14)  # of unadjusted closes, to detect price jumps
EARLIEST_DATE = date(1900, 1, 1)
MAX_JUMP = 0.4  # larger relative price changes between sessions need a corporate action or a second fetch


@dataclass(frozen=True, eq=False)
class CheckedPrices:
    """Prices of one decision.

    panel: adjusted window; its last row is the decision bar. closes: valid closes of that bar by symbol, per share as
    of the day of the fills: unadjusted except for splits and stock dividends since the bar. problems: symbol to error
    message. halted_symbols: symbols with an unexplained price jump.
    """

    panel: Panel
    closes: Mapping[str, Decimal]
    problems: Mapping[str, str]
    halted_symbols: frozenset[str]


def fetch_checked_prices(
    feed: DataFeed, symbols: Sequence[str], bar: date, actions: Sequence[CorporateAction], settings: DataSettings,
    record_fetch: PriceFetchRecorder,
) -> CheckedPrices:  # fmt: skip
    """Fetch the whole adjusted window and the last unadjusted closes, and check them.

    Raises BrokerError if the feed does not answer and DataError if none of its bars can be used.
    """
    # Five sessions span at least seven calendar days; with a margin for holidays, then cut to length.
    start = bar - timedelta(days=settings.window * 3 // 2 + 30) if settings.window else EARLIEST_DATE
    adjusted = _last_bars(feed.bars(symbols, start, bar, "all"), settings.window)
    raw = _last_bars(feed.bars(symbols, bar - RAW_HISTORY, bar, "raw"), 0)
    for table, adjustment in ((adjusted, "all"), (raw, "raw")):
        record_fetch(table, adjustment)
    return check_prices(adjusted, raw, bar, actions, MAX_JUMP)


def check_prices(
    adjusted: BarTable, raw: BarTable, bar: date, actions: Sequence[CorporateAction], max_jump: float
) -> CheckedPrices:
    """Check the price window of a decision on `bar`. Raises DataError if the window lacks that bar.

    A symbol fails if its bar of that session is missing, NaN, zero, negative or inconsistent (close outside high and
    low), or if its unadjusted close changed by more than `max_jump` (a fraction) since the session before without a
    split that explains it. actions: corporate actions up to the day of the fills.
    """
    row = _row_of_session(adjusted, bar, "adjusted")
    recent = _row_of_session(raw, bar, "unadjusted")
    tradable = _valid_bars(adjusted)
    has_no_bar = np.flatnonzero(~tradable[row])
    problems = {adjusted.symbols[n]: f"its bar of {bar} is missing or invalid" for n in has_no_bar}
    halted_symbols = set()
    valid = _valid_bars(raw)
    closes: dict[str, Decimal] = {}
    for n, symbol in enumerate(raw.symbols):
        if not valid[recent, n]:
            problems.setdefault(symbol, f"its unadjusted bar of {bar} is missing or invalid")
            continue
        own = [a for a in actions if a.symbol == symbol]
        # Positions already include today's splits: the close of a share before them would count them twice.
        closes[symbol] = Decimal(repr(float(raw.close[recent, n]))) / _split_ratio(own, bar, date.max)
        jump = _price_jump(raw, valid, recent, n, own)
        if abs(jump) > max_jump:
            halted_symbols.add(symbol)
            problems[symbol] = f"its price changed by {jump:+.0%} on {bar} without a corporate action"
    for symbol in problems:
        tradable[row, adjusted.symbols.index(symbol)] = False
    return CheckedPrices(_panel_up_to(adjusted, tradable, row), closes, problems, frozenset(halted_symbols))


def fetch_minute_prices(
    feed: DataFeed, config: PaperConfig, calendar: Calendar, cycle: TradingCycle, record_fetch: PriceFetchRecorder
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
    days = calendar.sessions(cycle.bar - timedelta(days=2 * count + 10), cycle.bar)[-count - 1 :]
    table = feed.minute_bars(config.symbols, days[0].open, cycle.time, "all")
    record_fetch(table, "all")
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


def check_minute_prices(table: BarTable, bar: datetime, minutes: int, max_jump: float) -> CheckedPrices:
    """Check the window of a decision at the end of the bar that starts at `bar`. Raises DataError if it is missing.

    table: bars of `minutes`, adjusted as of today, so that splits before the bar are no jumps.
    """
    start = np.datetime64(bar.replace(tzinfo=None), "ns")
    if not len(table.times) or table.times[-1] != start:
        newest = str(table.times[-1].astype("datetime64[m]")) if len(table.times) else "none"
        raise DataError(f"the minute bars are stale: those from {bar:%H:%M} UTC are needed, the newest bar is {newest}")
    row = len(table.times) - 1
    tradable = _valid_bars(table)
    problems = {}
    halted_symbols = set()
    closes = {}
    for n, symbol in enumerate(table.symbols):
        if not tradable[row, n]:
            problems[symbol] = f"it has no valid trade in the bar from {bar:%H:%M} UTC"
            continue
        closes[symbol] = Decimal(repr(float(table.close[row, n])))
        jump = _price_jump(table, tradable, row, n, ())
        if abs(jump) > max_jump:
            halted_symbols.add(symbol)
            tradable[row, n] = False
            problems[symbol] = f"its price changed by {jump:+.0%} within {minutes} minutes, or since the bar before"
    name = {60: "1h", 15: "15m"}.get(minutes, "1m")
    return CheckedPrices(_panel_up_to(table, tradable, row, name), closes, problems, frozenset(halted_symbols))


def valid_panel(table: BarTable) -> Panel:
    """Return the valid bars of a table as a panel, NaN elsewhere. Raises DataError for an empty table."""
    if not len(table.times):
        raise DataError("the feed has no bars of these symbols. Check the symbols and the feed.")
    return _panel_up_to(table, _valid_bars(table), len(table.times) - 1)


def _last_bars(table: BarTable, window: int) -> BarTable:
    if not len(table.times):
        raise DataError("the feed has no bars of these symbols. Check the symbols and the feed.")
    return table.rows(slice(-window, None))


def table_sha256(table: BarTable) -> str:
    """Hash of symbols, times and prices."""
    digest = hashlib.sha256(repr(table.symbols).encode())
    digest.update(table.times.astype("datetime64[ns]").astype("<i8").tobytes())
    for name in COLUMNS:
        digest.update(np.ascontiguousarray(getattr(table, name), dtype="<f8").tobytes())
    return digest.hexdigest()


def _row_of_session(table: BarTable, bar: date, name: str) -> int:
    if not len(table.times) or table.times[-1].astype("datetime64[D]") < np.datetime64(bar):
        newest = str(table.times[-1].astype("datetime64[D]")) if len(table.times) else "none"
        raise DataError(f"the {name} prices are stale: the session of {bar} is needed, the newest bar is {newest}")
    rows = np.flatnonzero(table.times.astype("datetime64[D]") == np.datetime64(bar))
    if len(rows) != 1:
        raise DataError(f"the {name} prices have {len(rows)} bars of the session of {bar}, must be 1")
    return int(rows[0])


def _valid_bars(table: BarTable) -> Bools:
    """Return [T, N], True where all available columns are positive and finite and the close lies within the bar."""
    close = table.close
    valid: Bools = np.isfinite(close) & (close > 0)
    with np.errstate(invalid="ignore"):
        for column in (table.open, table.high, table.low):
            if np.isfinite(column).any():
                valid &= np.isfinite(column) & (column > 0)
        if np.isfinite(table.volume).any():
            valid &= np.isfinite(table.volume) & (table.volume >= 0)
        if np.isfinite(table.high).any() and np.isfinite(table.low).any():
            slack = 1e-6 * close  # adjusted prices are rounded
            valid &= (close <= table.high + slack) & (close >= table.low - slack)
    return valid


def _price_jump(raw: BarTable, valid: Bools, row: int, n: int, actions: Sequence[CorporateAction]) -> float:
    """Return the relative change of the close since the previous valid bar, adjusted for splits in between."""
    before = np.flatnonzero(valid[:row, n])
    if not len(before):
        return 0.0
    last = int(before[-1])
    days = raw.times.astype("datetime64[D]")
    ratio = _split_ratio(actions, days[last].item(), days[row].item())
    return float(raw.close[row, n] / raw.close[last, n]) * float(ratio) - 1.0


def _split_ratio(actions: Sequence[CorporateAction], after: date, last_day: date) -> Decimal:
    """Return shares after per share before, over splits and stock dividends with after < ex_date <= until."""
    ratios = (a.ratio for a in actions if a.changes_shares and after < a.ex_date <= last_day)
    return math.prod(ratios, start=Decimal(1))


def _panel_up_to(table: BarTable, tradable: Bools, row: int, bar: str = "1d") -> Panel:
    """Return the rows up to `row` as a checked panel, without the columns that the feed lacks."""
    columns: dict[str, Floats] = {}
    for name in COLUMNS:
        values = getattr(table, name)[: row + 1]
        if np.isfinite(values).any():
            columns[name] = np.where(tradable[: row + 1], values, np.nan)
    return make_panel(
        table.times[: row + 1], table.symbols, columns, name="paper", source=table.feed, bar=bar, allow_gaps=True
    )  # fmt: skip
