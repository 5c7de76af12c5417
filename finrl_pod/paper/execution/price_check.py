"""Prices before a decision: fresh, sane, and their jumps explained. What fails keeps its holding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import numpy as np

from finrl_pod.data.panel import make_panel
from finrl_pod.errors import DataError
from finrl_pod.paper.brokers.port import BarTable
from finrl_pod.paper.records import CorporateAction
from finrl_pod.types import Bools, Floats, Panel


@dataclass(frozen=True, eq=False)
class CheckedPrices:
    """panel: the adjusted window, its last row the decision bar. closes: of that bar, by symbol, where they are sound;
    each for a share as it is on the day of the fills: unadjusted but for splits and stock dividends since the bar.
    problems: symbol to what is wrong with it. halted: those whose price jumped without a reason.
    """

    panel: Panel
    closes: Mapping[str, Decimal]
    problems: Mapping[str, str]
    halted: frozenset[str]


def check_prices(
    adjusted: BarTable, raw: BarTable, bar: date, actions: Sequence[CorporateAction], max_jump: float
) -> CheckedPrices:
    """Check the window of a decision on `bar`. Raises DataError when nothing of it can be used.

    A symbol is faulty whose bar of that session is missing, NaN, zero, negative or contradicts itself, or whose
    unadjusted close is more than `max_jump` from the session's before without a split that explains it. actions: those
    up to the day of the fills.
    """
    row = _row(adjusted, bar, "adjusted")
    recent = _row(raw, bar, "unadjusted")
    tradable = _sound(adjusted)
    problems = {}
    for n, symbol in enumerate(adjusted.symbols):
        if not tradable[row, n]:
            problems[symbol] = f"its bar of {bar} is missing or faulty"
    halted = set()
    good = _sound(raw)
    closes: dict[str, Decimal] = {}
    for n, symbol in enumerate(raw.symbols):
        if not good[recent, n]:
            problems.setdefault(symbol, f"its unadjusted bar of {bar} is missing or faulty")
            continue
        own = [a for a in actions if a.symbol == symbol]
        # Positions have what is effective today booked already: the close of a share before it would count it twice.
        closes[symbol] = Decimal(repr(float(raw.close[recent, n]))) / _ratio(own, bar, date.max)
        jump = _jump(raw, good, recent, n, own)
        if abs(jump) > max_jump:
            halted.add(symbol)
            problems[symbol] = f"its price changed by {jump:+.0%} to {bar}, which no corporate action explains"
    for symbol in problems:
        tradable[row, adjusted.symbols.index(symbol)] = False
    return CheckedPrices(_panel(adjusted, tradable, row), closes, problems, frozenset(halted))


def sound_panel(table: BarTable) -> Panel:
    """All bars that are sound, as a checked panel. Raises DataError where there are none."""
    if not len(table.times):
        raise DataError("the feed has no bars of these symbols: check their names and the feed")
    return _panel(table, _sound(table), len(table.times) - 1)


def _row(table: BarTable, bar: date, name: str) -> int:
    if not len(table.times) or table.times[-1].astype("datetime64[D]") < np.datetime64(bar):
        newest = str(table.times[-1].astype("datetime64[D]")) if len(table.times) else "none"
        raise DataError(f"the {name} prices are stale: the session of {bar} is wanted, the newest bar is {newest}")
    rows = np.flatnonzero(table.times.astype("datetime64[D]") == np.datetime64(bar))
    if len(rows) != 1:
        raise DataError(f"the {name} prices have {len(rows)} bars of the session of {bar}, one is wanted")
    return int(rows[0])


def _sound(table: BarTable) -> Bools:
    """[T, N]: every column the table has is a positive finite number, and the close lies within the bar."""
    close = table.close
    good: Bools = np.isfinite(close) & (close > 0)
    with np.errstate(invalid="ignore"):
        for column in (table.open, table.high, table.low):
            if np.isfinite(column).any():
                good &= np.isfinite(column) & (column > 0)
        if np.isfinite(table.volume).any():
            good &= np.isfinite(table.volume) & (table.volume >= 0)
        if np.isfinite(table.high).any() and np.isfinite(table.low).any():
            slack = 1e-6 * close  # adjusted prices are rounded
            good &= (close <= table.high + slack) & (close >= table.low - slack)
    return good


def _jump(raw: BarTable, good: Bools, row: int, n: int, actions: Sequence[CorporateAction]) -> float:
    """Relative change of the close from the last sound bar before, with the splits in between taken out."""
    before = np.flatnonzero(good[:row, n])
    if not len(before):
        return 0.0
    last = int(before[-1])
    days = raw.times.astype("datetime64[D]")
    ratio = _ratio(actions, days[last].item(), days[row].item())
    return float(raw.close[row, n] / raw.close[last, n]) * float(ratio) - 1.0


def _ratio(actions: Sequence[CorporateAction], after: date, until: date) -> Decimal:
    """Shares that one share has become by splits and stock dividends with after < ex_date <= until."""
    became = (a.ratio for a in actions if a.changes_shares and after < a.ex_date <= until)
    return math.prod(became, start=Decimal(1))


def _panel(table: BarTable, tradable: Bools, row: int) -> Panel:
    """The rows up to `row` as a checked panel; a column that the feed does not have is left out."""
    columns: dict[str, Floats] = {}
    for name in ("open", "high", "low", "close", "volume"):
        values = getattr(table, name)[: row + 1]
        if np.isfinite(values).any():
            columns[name] = np.where(tradable[: row + 1], values, np.nan)
    return make_panel(
        table.times[: row + 1], table.symbols, columns, name="paper", source=table.feed, allow_gaps=True
    )  # fmt: skip
