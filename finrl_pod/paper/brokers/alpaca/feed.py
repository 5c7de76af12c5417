"""Alpaca prices as a `DataFeed`: bars of completed sessions, unchecked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import BrokerUnavailable
from finrl_pod.paper.brokers.alpaca import responses
from finrl_pod.paper.brokers.alpaca.account import AlpacaAccount
from finrl_pod.paper.brokers.alpaca.client import AlpacaPyLibrary
from finrl_pod.paper.brokers.alpaca.responses import NEW_YORK, UnreadableResponse
from finrl_pod.paper.domain.port import Adjustment, BarTable, Clock

_BAR_KEYS = ("o", "h", "l", "c", "v")
FeedName = Literal["iex", "sip"]
Time = TypeVar("Time", date, datetime)


class AlpacaFeed:
    """Satisfies the `DataFeed` protocol. feed: "iex" for one exchange, "sip" for all (needs a paid subscription)."""

    def __init__(self, account: AlpacaAccount, library: AlpacaPyLibrary, clock: Clock, feed: FeedName) -> None:
        self.name = f"{account.name}/{feed}"
        self._account = account
        self._library = library
        self._clock = clock
        self._feed = feed

    def bars(self, symbols: Sequence[str], start: date, end: date, adjustment: Adjustment) -> BarTable:
        """Daily bars, with a row for each day with a bar of any symbol. Today is included after the close only."""
        unique_symbols = list(dict.fromkeys(symbols))
        first, last = (datetime.combine(day, time(), NEW_YORK) for day in (start, end + timedelta(days=1)))
        last -= timedelta(seconds=1)
        response = self._read(lambda: self._library.bars("1Day", unique_symbols, first, last, adjustment, self._feed))
        with self._account.boundary("the bars"):
            bars = self._values(response, unique_symbols)
            rows = {(symbol, bar_time.astimezone(NEW_YORK).date()): values for symbol, bar_time, values in bars}
        last_complete = self._last_complete_day()
        days = sorted({day for _, day in rows if start <= day <= end and day <= last_complete})
        times = np.array(days, dtype="datetime64[D]").astype("datetime64[ns]")
        return self._table(times, days, unique_symbols, rows)

    def minute_bars(self, symbols: Sequence[str], start: datetime, end: datetime, adjustment: Adjustment) -> BarTable:
        """Minute bars, with a row for each minute with a bar of any symbol, also outside the session."""
        unique_symbols = list(dict.fromkeys(symbols))
        last = end - timedelta(seconds=1)
        response = self._read(lambda: self._library.bars("1Min", unique_symbols, start, last, adjustment, self._feed))
        complete = self._clock.now() - timedelta(minutes=1)
        with self._account.boundary("the minute bars"):
            bars = self._values(response, unique_symbols)
            rows = {(s, minute): values for s, minute, values in bars if start <= minute < end and minute <= complete}
        minutes = sorted({minute for _, minute in rows})
        times = np.array([minute.replace(tzinfo=None) for minute in minutes], dtype="datetime64[ns]")
        return self._table(times, minutes, unique_symbols, rows)

    def _table(
        self, times: NDArray[np.datetime64], days: Sequence[Time], symbols: Sequence[str],
        rows: Mapping[tuple[str, Time], list[float]],
    ) -> BarTable:  # fmt: skip
        row_of_day = {day: t for t, day in enumerate(days)}
        column = {symbol: n for n, symbol in enumerate(symbols)}
        table = np.full((len(_BAR_KEYS), len(days), len(symbols)), np.nan)
        for (symbol, day), values in rows.items():
            if day in row_of_day:
                table[:, row_of_day[day], column[symbol]] = values
        opens, high, low, close, volume = table
        return BarTable(times, tuple(symbols), opens, high, low, close, volume, self._feed)

    def latest(self, symbols: Sequence[str]) -> Mapping[str, tuple[Decimal, datetime]]:
        response = self._read(lambda: self._library.latest_trades(list(symbols), self._feed))
        last_trades = {}
        with self._account.boundary("the last trades"):
            for symbol in symbols:
                trade = response.get(symbol)
                if trade:
                    last_trades[symbol] = (responses.number(trade, "p"), responses.moment(trade, "t"))
        return last_trades

    def _last_complete_day(self) -> date:
        """Last date whose session is complete: today after the close, else yesterday."""
        now = self._clock.now()
        today = now.astimezone(NEW_YORK).date()
        sessions = self._account.calendar(today, today)
        return today if sessions and now >= sessions[0].close else today - timedelta(days=1)

    def _read(self, call: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        response = self._account.read(call, "prices")
        if not isinstance(response, Mapping):
            raise BrokerUnavailable(f"{self.name}: the response is not an object of symbols")
        return response

    def _values(
        self, response: Mapping[str, Any], symbols: Sequence[str]
    ) -> Iterator[tuple[str, datetime, list[float]]]:
        """Symbol, time in UTC, and values in the order of `_BAR_KEYS` of each bar."""
        for symbol in symbols:
            bars = response.get(symbol) or []
            if not isinstance(bars, list) or not all(isinstance(bar, Mapping) for bar in bars):
                raise BrokerUnavailable(f"{self.name}: the bars of {symbol} are not a list of objects")
            for bar in bars:
                try:
                    bar_time = responses.moment(bar, "t")
                except UnreadableResponse as error:
                    raise BrokerUnavailable(f"{self.name}: cannot read a bar: {error}") from None
                yield symbol, bar_time, [_float(bar.get(key)) for key in _BAR_KEYS]


def _float(value: Any) -> float:
    """The value as a float; NaN if it is not a number. Callers check the bars."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
