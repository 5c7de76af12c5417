"""Checks prices before a decision: up to date, valid, and no unexplained jump. A symbol that fails is not traded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

import numpy as np

from finrl_pod.data.panel import make_panel
from finrl_pod.errors import DataError
from finrl_pod.paper.domain.port import COLUMNS, BarTable
from finrl_pod.paper.domain.records import CorporateAction
from finrl_pod.types import Bools, Floats, Panel

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
