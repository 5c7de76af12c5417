"""Sessions of the New York Stock Exchange as plain numbers, looked up by bisection."""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

NEW_YORK = ZoneInfo("America/New_York")
_EXCHANGE = "XNYS"
_DAY = 86_400.0


@dataclass(frozen=True)
class Session:
    """One trading day. date: New York date. open, close, and midnight in New York: UTC epoch seconds."""

    date: date
    open: float
    close: float
    midnight: float

    def at(self, hours: int, minutes: int = 0) -> float:
        """A New York time of this day as UTC epoch seconds."""
        day = self.date
        return datetime(day.year, day.month, day.day, hours, minutes, tzinfo=NEW_YORK).timestamp()


class Sessions:
    """Every session from `start` to `end`, both inclusive. Moments are UTC epoch seconds.

    continuous: sessions are UTC days, whose midnight is their open.
    """

    def __init__(self, start: date, end: date, *, continuous: bool = False) -> None:
        self.continuous = continuous
        self.all: Sequence[Session] = _utc_days(start, end) if continuous else _sessions(start, end)
        self._opens = [s.open for s in self.all]
        self._closes = [s.close for s in self.all]
        self._dates = [s.date for s in self.all]
        self._by_date = {s.date: s for s in self.all}

    def on(self, day: date) -> Session | None:
        """Session of a date; None on a day without one."""
        return self._by_date.get(day)

    def current(self, moment: float) -> Session | None:
        """Session with open <= moment < close; None if the exchange is closed."""
        i = bisect_right(self._opens, moment) - 1
        return self.all[i] if i >= 0 and moment < self._closes[i] else None

    def opened(self, moment: float) -> Session | None:
        """Last session with open <= moment, or None."""
        i = bisect_right(self._opens, moment) - 1
        return self.all[i] if i >= 0 else None

    def closed(self, moment: float) -> Session | None:
        """Last session with close <= moment, or None."""
        i = bisect_right(self._closes, moment) - 1
        return self.all[i] if i >= 0 else None

    def next_open(self, moment: float) -> Session:
        """First session with open > moment. Raises IndexError after the last one."""
        return self.all[bisect_right(self._opens, moment)]

    def next_close(self, moment: float) -> Session:
        """First session with close > moment. Raises IndexError after the last one."""
        return self.all[bisect_right(self._closes, moment)]

    def between(self, start: date, end: date) -> list[Session]:
        """Sessions with start <= date <= end."""
        return list(self.all[bisect_left(self._dates, start) : bisect_right(self._dates, end)])


@functools.lru_cache(maxsize=8)
def _sessions(start: date, end: date) -> tuple[Session, ...]:
    import exchange_calendars

    # exchange_calendars rejects a range whose end equals its start.
    calendar = exchange_calendars.get_calendar(_EXCHANGE, start=start.isoformat(), end=(end + timedelta(1)).isoformat())
    table = calendar.schedule.loc[: end.isoformat()]
    return tuple(
        Session(day.date(), open_.timestamp(), close.timestamp(), _midnight(day.date()))
        for day, open_, close in zip(table.index, table["open"], table["close"], strict=True)
    )


def _utc_days(start: date, end: date) -> tuple[Session, ...]:
    midnight = datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp()
    opens = [midnight + k * _DAY for k in range((end - start).days + 1)]
    return tuple(Session(datetime.fromtimestamp(t, UTC).date(), t, t + _DAY, t) for t in opens)


def trading_windows(sessions: Sequence[Session], before: float, after: float) -> tuple[tuple[float, float], ...]:
    """(start, end) around each open and close, from `before` to `after` seconds; overlapping windows are merged."""
    found: list[tuple[float, float]] = []
    for session in sessions:
        for moment in (session.open, session.close):
            start = moment - before
            end = moment + after
            if found and start <= found[-1][1]:
                start = found.pop()[0]
            found.append((start, end))
    return tuple(found)


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=NEW_YORK).timestamp()


def new_york(moment: float) -> datetime:
    """UTC epoch seconds as a datetime in New York time."""
    return datetime.fromtimestamp(moment, NEW_YORK)
