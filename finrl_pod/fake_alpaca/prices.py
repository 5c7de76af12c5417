"""Raw and adjusted prices of a panel: daily bars, and the price path within a session, at which orders fill.

The panel must be adjusted for every configured corporate action; raw prices undo these adjustments.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca.settings import CorporateAction
from finrl_pod.types import Floats, Panel

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

    continuous: sessions are UTC days and open at midnight.
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

    def last_opened(self, moment: float) -> Session | None:
        """Last session with open <= moment, or None."""
        i = bisect_right(self._opens, moment) - 1
        return self.all[i] if i >= 0 else None

    def last_closed(self, moment: float) -> Session | None:
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
        Session(day.date(), open_.timestamp(), close.timestamp(), day.tz_localize(NEW_YORK).timestamp())
        for day, open_, close in zip(table.index, table["open"], table["close"], strict=True)
    )


def _utc_days(start: date, end: date) -> tuple[Session, ...]:
    midnight = datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp()
    opens = [midnight + k * _DAY for k in range((end - start).days + 1)]
    return tuple(Session(datetime.fromtimestamp(t, UTC).date(), t, t + _DAY, t) for t in opens)


def trading_windows(sessions: Sequence[Session], before: float, after: float) -> tuple[tuple[float, float], ...]:
    """(start, end) around each open and close, from `before` to `after` seconds; overlapping windows are merged."""
    windows: list[tuple[float, float]] = []
    for session in sessions:
        for moment in (session.open, session.close):
            start = moment - before
            end = moment + after
            if windows and start <= windows[-1][1]:
                start = windows.pop()[0]
            windows.append((start, end))
    return tuple(windows)


def new_york(moment: float) -> datetime:
    """UTC epoch seconds as a datetime in New York time."""
    return datetime.fromtimestamp(moment, NEW_YORK)


OHLC = ("open", "high", "low", "close")


class Prices:
    """Raw and adjusted daily prices of a panel, and the price at any time.

    Within a session the price moves linearly from the open through low and high (high first if the day closes below
    its open) to the close, one third of the session each. A panel with closes only trades at its close all day.
    Moments are UTC epoch seconds. continuous: argument of `Sessions`. Raises InputError for a panel without daily
    bars, and for a corporate action on a date or symbol without a bar.
    """

    def __init__(self, panel: Panel, actions: tuple[CorporateAction, ...] = (), *, continuous: bool = False) -> None:
        if panel.bar != "1d":
            raise InputError(f"the fake server needs daily bars; panel {panel.name!r} has {panel.bar} bars")
        self.symbols = panel.symbols
        self.dates: list[date] = [d.item() for d in panel.times.astype("datetime64[D]")]
        self.tradable = panel.tradable
        last = date(self.dates[-1].year + 1, 12, 31)
        self.sessions = Sessions(self.dates[0], last, continuous=continuous)
        self.actions = actions
        self._column = {s: n for n, s in enumerate(panel.symbols)}
        close = panel.close
        open_price = close if panel.open is None else panel.open
        high = np.fmax(open_price, close) if panel.high is None else panel.high
        low = np.fmin(open_price, close) if panel.low is None else panel.low
        # [T, N] each: adjusted price / raw price, for all actions and for splits only.
        self._total, self._splits = self._adjustment_factors(close)
        prices = zip(OHLC, (open_price, high, low, close), strict=True)
        self._raw = {name: value / self._total for name, value in prices}
        self._volume = None if panel.volume is None else np.nan_to_num(panel.volume) * self._splits
        rows = np.where(panel.tradable, np.arange(len(panel.tradable))[:, None], -1)
        self._last_bar = np.maximum.accumulate(rows, axis=0)  # [T, N]: row of the last bar up to t, -1 before the first

    def _adjustment_factors(self, close: Floats) -> tuple[Floats, Floats]:
        """[T, N] each: product of the factors of all actions, and of splits only, with an ex-date after the bar."""
        total = np.ones_like(close)
        splits = np.ones_like(close)
        # Latest action first: the factor of a dividend needs the raw close of the day before.
        for action in sorted(self.actions, key=lambda a: a.ex_date, reverse=True):
            t, n = self._position_of(action)
            if action.kind == "split":
                factor = action.old / action.new
                splits[:t, n] *= factor
            else:
                # panel = raw * total * (1 - cash / raw), hence raw = panel / total + cash.
                raw = close[t - 1, n] / total[t - 1, n] + action.cash
                factor = 1.0 - action.cash / raw
            total[:t, n] *= factor
        return total, splits

    def _position_of(self, action: CorporateAction) -> tuple[int, int]:
        n = self._column.get(action.symbol)
        day = date.fromisoformat(action.ex_date)
        t = self.row_of(day)
        if n is None or t is None or t == 0:
            raise InputError(
                f"{action.kind} of {action.symbol} on {action.ex_date}: the panel must have bars on and before that day"
            )
        return t, n

    def row_of(self, day: date) -> int | None:
        """Row of the bar of a date, or None."""
        i = bisect_right(self.dates, day) - 1
        return i if i >= 0 and self.dates[i] == day else None

    def last_row_by(self, day: date) -> int:
        """Row of the last bar up to a date; 0 before the first one."""
        return max(bisect_right(self.dates, day) - 1, 0)

    def last_row_of(self, symbol: str, day: date) -> int | None:
        """Row of the last bar of the symbol up to a date, or None."""
        row = bisect_right(self.dates, day) - 1
        last = -1 if row < 0 else int(self._last_bar[row, self._column[symbol]])
        return None if last < 0 else last

    def trades_on(self, symbol: str, day: date) -> bool:
        """Whether the symbol has a bar on a date."""
        row = self.row_of(day)
        return row is not None and bool(self.tradable[row, self._column[symbol]])

    def tradable_rows(self, symbol: str, rows: list[int]) -> list[bool]:
        """For each row, whether the symbol has a bar."""
        tradable: list[bool] = self.tradable[rows, self._column[symbol]].tolist() if rows else []
        return tradable

    def bar(self, symbol: str, row: int, adjustment: str, as_of: int) -> dict[str, float] | None:
        """{open, high, low, close, volume} of a row, adjusted ("raw", "split", ...) as of a row; None without a bar."""
        n = self._column[symbol]
        if not self.tradable[row, n]:
            return None
        total = self._total[row, n] / self._total[as_of, n]
        splits = self._splits[row, n] / self._splits[as_of, n]
        factor = {"raw": 1.0, "split": splits, "dividend": total / splits, "all": total}[adjustment]
        volume = 0.0 if self._volume is None else float(self._volume[row, n])
        if adjustment in ("split", "all"):
            volume /= float(splits)
        return {**{f: float(self._raw[f][row, n] * factor) for f in OHLC}, "volume": volume}

    def price_at(self, symbol: str, moment: float) -> float | None:
        """Raw price at a moment: on the path of an open session, else the last close; None before the first bar."""
        session = self.sessions.last_opened(moment)
        if session is None:
            return None
        path = self.path(symbol, session) if moment < session.close else None
        if path is not None:
            return float(np.interp(moment, [t for t, _ in path], [p for _, p in path]))
        return self.last_close(symbol, moment)

    def last_close(self, symbol: str, moment: float) -> float | None:
        """Raw close of the last bar of the symbol in a closed session; None before the first bar."""
        session = self.sessions.last_closed(moment)
        row = -1 if session is None else bisect_right(self.dates, session.date) - 1
        if row < 0:
            return None
        n = self._column[symbol]
        last = int(self._last_bar[row, n])
        # A split on a day without a bar still changes the value of a share.
        return None if last < 0 else float(self._raw["close"][last, n] * self._splits[last, n] / self._splits[row, n])

    def path(self, symbol: str, session: Session) -> list[tuple[float, float]] | None:
        """(moment, raw price) at the corners of the price path of a session; None if the symbol has no bar that day."""
        row = self.row_of(session.date)
        n = self._column[symbol]
        if row is None or not self.tradable[row, n]:
            return None
        first, high, low, last = (float(self._raw[f][row, n]) for f in OHLC)
        middle = (low, high) if last >= first else (high, low)
        third = (session.close - session.open) / 3
        times = (session.open, session.open + third, session.open + 2 * third, session.close)
        return list(zip(times, (first, *middle, last), strict=True))
