"""The exchange's sessions as plain numbers: exchange_calendars asked once, looked up by bisection."""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

NEW_YORK = ZoneInfo("America/New_York")
_EXCHANGE = "XNYS"


@dataclass(frozen=True)
class Session:
    """One trading day: its date in New York; that day's midnight there, opening and close in UTC epoch seconds."""

    date: date
    open: float
    close: float
    midnight: float

    def at(self, hours: int, minutes: int = 0) -> float:
        """A time of this day in New York, as UTC epoch seconds."""
        day = self.date
        return datetime(day.year, day.month, day.day, hours, minutes, tzinfo=NEW_YORK).timestamp()


class Sessions:
    """Every session from `start` to `end`, both included."""

    def __init__(self, start: date, end: date) -> None:
        self.all: Sequence[Session] = _sessions(start, end)
        self._opens = [s.open for s in self.all]
        self._closes = [s.close for s in self.all]
        self._dates = [s.date for s in self.all]
        self._by_date = {s.date: s for s in self.all}

    def on(self, day: date) -> Session | None:
        """The session of a date, or None on a day without one."""
        return self._by_date.get(day)

    def current(self, moment: float) -> Session | None:
        """The session that is open at a moment: opening included, close excluded."""
        i = bisect_right(self._opens, moment) - 1
        return self.all[i] if i >= 0 and moment < self._closes[i] else None

    def opened(self, moment: float) -> Session | None:
        """The last session that has opened by a moment."""
        i = bisect_right(self._opens, moment) - 1
        return self.all[i] if i >= 0 else None

    def closed(self, moment: float) -> Session | None:
        """The last session that has closed by a moment."""
        i = bisect_right(self._closes, moment) - 1
        return self.all[i] if i >= 0 else None

    def next_open(self, moment: float) -> Session:
        """The first session that opens after a moment."""
        return self.all[bisect_right(self._opens, moment)]

    def next_close(self, moment: float) -> Session:
        """The first session that closes after a moment."""
        return self.all[bisect_right(self._closes, moment)]

    def between(self, start: date, end: date) -> list[Session]:
        """Sessions with start <= date <= end."""
        return list(self.all[bisect_left(self._dates, start) : bisect_right(self._dates, end)])


@functools.lru_cache(maxsize=8)
def _sessions(start: date, end: date) -> tuple[Session, ...]:
    import exchange_calendars

    # The library refuses a range that ends where it starts.
    calendar = exchange_calendars.get_calendar(_EXCHANGE, start=start.isoformat(), end=(end + timedelta(1)).isoformat())
    table = calendar.schedule.loc[: end.isoformat()]
    return tuple(
        Session(day.date(), open_.timestamp(), close.timestamp(), _midnight(day.date()))
        for day, open_, close in zip(table.index, table["open"], table["close"], strict=True)
    )


def trading_windows(sessions: Sequence[Session], before: float, after: float) -> tuple[tuple[float, float], ...]:
    """(start, end) around each opening and each close, in seconds before and after; those that meet become one."""
    found: list[tuple[float, float]] = []
    for session in sessions:
        for moment in (session.open, session.close):
            start, end = moment - before, moment + after
            if found and start <= found[-1][1]:
                start = found.pop()[0]
            found.append((start, end))
    return tuple(found)


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=NEW_YORK).timestamp()


def new_york(moment: float) -> datetime:
    """A moment on the clocks of New York."""
    return datetime.fromtimestamp(moment, NEW_YORK)


def stamp(moment: float) -> str:
    """RFC 3339 in UTC with microseconds, as Alpaca writes times."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
