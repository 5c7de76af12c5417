"""A panel's prices as a clock lets them be seen: what the simulated broker tells of them, and fills at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Literal

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.paper.brokers.port import BarTable, Clock
from finrl_pod.paper.runtime.schedule import Calendar
from finrl_pod.types import Floats, Panel


class PanelPrices:
    """Raises InputError for a panel that is not daily, and for a symbol that it does not have."""

    def __init__(self, panel: Panel, clock: Clock, calendar: Calendar) -> None:
        if panel.bar != "1d":
            raise InputError(f"the simulated broker needs daily bars, panel {panel.name!r} has {panel.bar}")
        self._panel = panel
        self._days = panel.times.astype("datetime64[D]")
        self._clock = clock
        self._calendar = calendar

    def bars(self, symbols: Sequence[str], start: date, end: date) -> BarTable:
        """Complete sessions alone: what has not closed on the clock is not there."""
        last = self._calendar.last_closed(self._clock.now()).date
        rows = (self._days >= np.datetime64(start)) & (self._days <= np.datetime64(min(end, last)))
        columns = [self._column(symbol) for symbol in symbols]
        empty = np.full((int(rows.sum()), len(columns)), np.nan)

        def part(name: str) -> Floats:
            values: Floats | None = getattr(self._panel, name)
            return empty if values is None else values[rows][:, columns].copy()

        prices = {name: part(name) for name in ("open", "high", "low", "close", "volume")}
        return BarTable(times=self._panel.times[rows].copy(), symbols=tuple(symbols), feed="panel", **prices)

    def latest(self, symbols: Sequence[str]) -> Mapping[str, tuple[Decimal, datetime]]:
        """The last closes that have passed, and when that was."""
        session = self._calendar.last_closed(self._clock.now())
        return {symbol: (self.last(symbol), session.close) for symbol in symbols}

    def last(self, symbol: str) -> Decimal:
        """The last close that has passed, for valuation; 0 before the first."""
        last, n = self._calendar.last_closed(self._clock.now()).date, self._column(symbol)
        rows = np.flatnonzero((self._days <= np.datetime64(last)) & self._panel.tradable[:, n])
        return Decimal(repr(float(self._panel.close[rows[-1], n]))) if len(rows) else Decimal(0)

    def of_auction(self, symbol: str, day: date, column: Literal["open", "close"]) -> float | None:
        """What a session's opening or closing auction is held at; None where the symbol does not trade."""
        rows, n = np.flatnonzero(self._days == np.datetime64(day)), self._column(symbol)
        values: Floats | None = getattr(self._panel, column)
        if values is None or len(rows) != 1 or not self._panel.tradable[rows[0], n]:
            return None
        price = float(values[rows[0], n])
        return price if np.isfinite(price) else None

    def _column(self, symbol: str) -> int:
        try:
            return self._panel.symbols.index(symbol)
        except ValueError:
            raise InputError(f"panel {self._panel.name!r} has no symbol {symbol}; name others in symbols") from None
