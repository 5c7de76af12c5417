"""Alpaca's prices behind the `DataFeed` port: complete sessions alone, just as they were delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, Protocol

import numpy as np

from finrl_pod.errors import BrokerUnavailable
from finrl_pod.paper.brokers.alpaca import reading
from finrl_pod.paper.brokers.alpaca.account import AlpacaAccount
from finrl_pod.paper.brokers.alpaca.reading import NEW_YORK, Unreadable
from finrl_pod.paper.brokers.port import Adjustment, BarTable, Clock

_COLUMNS = ("o", "h", "l", "c", "v")
FeedName = Literal["iex", "sip"]


class PriceWire(Protocol):
    """What a client library reads from the data host, every page of it."""

    def bars(
        self, symbols: Sequence[str], start: datetime, end: datetime, adjustment: str, feed: str
    ) -> Mapping[str, Any]: ...

    def latest_trades(self, symbols: Sequence[str], feed: str) -> Mapping[str, Any]: ...


class AlpacaFeed:
    """Satisfies `DataFeed`. feed: "iex", the trades of one exchange, or "sip", those of all (a paid subscription)."""

    def __init__(self, account: AlpacaAccount, wire: PriceWire, clock: Clock, feed: FeedName) -> None:
        self.name = f"{account.name}/{feed}"
        self._account = account
        self._wire = wire
        self._clock = clock
        self._feed = feed

    def bars(self, symbols: Sequence[str], start: date, end: date, adjustment: Adjustment) -> BarTable:
        """Daily bars; the times are those for which any symbol was delivered. Today's counts only after the close."""
        wanted = list(dict.fromkeys(symbols))
        first, last = (datetime.combine(day, time(), NEW_YORK) for day in (start, end + timedelta(days=1)))
        last -= timedelta(seconds=1)
        answer = self._asked(lambda: self._wire.bars(wanted, first, last, adjustment, self._feed))
        rows: dict[tuple[str, date], list[float]] = {}
        for symbol in wanted:
            for bar in self._list(answer, symbol):
                day = self._moment(bar).astimezone(NEW_YORK).date()
                rows[symbol, day] = [_float(bar.get(letter)) for letter in _COLUMNS]
        done = self._complete()
        days = sorted({day for _, day in rows if start <= day <= end and day <= done})
        table = np.full((len(_COLUMNS), len(days), len(wanted)), np.nan)
        for t, day in enumerate(days):
            for n, symbol in enumerate(wanted):
                if (symbol, day) in rows:
                    table[:, t, n] = rows[symbol, day]
        times = np.array(days, dtype="datetime64[D]").astype("datetime64[ns]")
        opened, high, low, close, volume = table
        return BarTable(times, tuple(wanted), opened, high, low, close, volume, self._feed)

    def latest(self, symbols: Sequence[str]) -> Mapping[str, tuple[Decimal, datetime]]:
        answer = self._asked(lambda: self._wire.latest_trades(list(symbols), self._feed))
        found = {}
        for symbol in symbols:
            trade = answer.get(symbol)
            if trade:
                try:
                    found[symbol] = (reading.number(trade, "p"), reading.moment(trade, "t"))
                except Unreadable as error:
                    raise BrokerUnavailable(
                        f"{self.name}: the last trade of {symbol} cannot be read: {error}"
                    ) from None
        return found

    def _complete(self) -> date:
        """The last date whose session is over: today after the close, else yesterday."""
        now = self._clock.now()
        today = now.astimezone(NEW_YORK).date()
        sessions = self._account.calendar(today, today)
        return today if sessions and now >= sessions[0].close else today - timedelta(days=1)

    def _asked(self, call: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        answer = self._account.asked(call)
        if not isinstance(answer, Mapping):
            raise BrokerUnavailable(f"{self.name}: the answer holds no symbols: nothing is known")
        return answer

    def _list(self, answer: Mapping[str, Any], symbol: str) -> list[Mapping[str, Any]]:
        bars = answer.get(symbol) or []
        if not isinstance(bars, list) or not all(isinstance(bar, Mapping) for bar in bars):
            raise BrokerUnavailable(f"{self.name}: the bars of {symbol} cannot be read: nothing is known")
        return bars

    def _moment(self, bar: Mapping[str, Any]) -> datetime:
        try:
            return reading.moment(bar, "t")
        except Unreadable as error:
            raise BrokerUnavailable(f"{self.name}: a bar cannot be read: {error}") from None


def _float(value: Any) -> float:
    """NaN for whatever is no number: whoever decides on the bars judges them."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
