"""What the market shows at a moment: a panel's bars, their path within a day, and corporate actions undone.

The panel is taken to be adjusted for every action that is configured. Orders fill at raw prices, and a bar asked for
with adjustments is adjusted for what has happened by the simulated present, not for what the panel knows of later.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from datetime import date

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca.sessions import Session, Sessions
from finrl_pod.fake_alpaca.settings import CorporateAction
from finrl_pod.types import Floats, Panel

FIELDS = ("open", "high", "low", "close")


class Prices:
    """Raw and adjusted daily prices of a panel, and the price at any moment.

    Within a session the price runs in straight lines from the open over low and high (high first when the day closes
    below its open) to the close, in thirds of the session. A panel that has closes alone trades at its close all day.
    """

    def __init__(self, panel: Panel, actions: tuple[CorporateAction, ...] = ()) -> None:
        if panel.bar != "1d":
            raise InputError(f"the fake server needs daily bars, panel {panel.name!r} has {panel.bar}")
        self.symbols = panel.symbols
        self.dates: list[date] = [d.item() for d in panel.times.astype("datetime64[D]")]
        self.tradable = panel.tradable
        self.sessions = Sessions(self.dates[0], date(self.dates[-1].year + 1, 12, 31))
        self.actions = actions
        self._column = {s: n for n, s in enumerate(panel.symbols)}
        close = panel.close
        opened = close if panel.open is None else panel.open
        high = np.fmax(opened, close) if panel.high is None else panel.high
        low = np.fmin(opened, close) if panel.low is None else panel.low
        # [T, N]: what the panel's price must be divided by to give the raw one, for each kind of adjustment.
        whole, splits = self._factors(close)
        self._whole, self._splits = whole, splits
        self._raw = {name: value / whole for name, value in zip(FIELDS, (opened, high, low, close), strict=True)}
        self._volume = None if panel.volume is None else panel.volume * splits
        self._last = _carried(panel.tradable)

    def _factors(self, close: Floats) -> tuple[Floats, Floats]:
        """[T, N] each: the product of the adjustments after a bar, of all actions and of splits alone."""
        whole, splits = np.ones_like(close), np.ones_like(close)
        # The latest action first: a dividend's factor needs the raw price of the day before it.
        for action in sorted(self.actions, key=lambda a: a.ex_date, reverse=True):
            t, n = self._place(action)
            if action.kind == "split":
                factor = action.old / action.new
                splits[:t, n] *= factor
            else:
                # The panel's price is raw * whole * (1 - cash / raw), so raw = panel / whole + cash.
                raw = close[t - 1, n] / whole[t - 1, n] + action.cash
                factor = 1.0 - action.cash / raw
            whole[:t, n] *= factor
        return whole, splits

    def _place(self, action: CorporateAction) -> tuple[int, int]:
        n = self._column.get(action.symbol)
        day = date.fromisoformat(action.ex_date)
        t = self.row_of(day)
        if n is None or t is None or t == 0:
            raise InputError(
                f"the panel has no bar of {action.symbol} on {action.ex_date} and before: no action can be placed"
            )
        return t, n

    def row_of(self, day: date) -> int | None:
        """The bar of a date, or None."""
        i = bisect_right(self.dates, day) - 1
        return i if i >= 0 and self.dates[i] == day else None

    def known_row(self, day: date) -> int:
        """The last bar up to a date (the first where it is before all)."""
        return max(bisect_right(self.dates, day) - 1, 0)

    def last_row(self, symbol: str, day: date) -> int | None:
        """The last bar up to a date on which the symbol has a price, or None."""
        row = bisect_right(self.dates, day) - 1
        last = -1 if row < 0 else int(self._last[row, self._column[symbol]])
        return None if last < 0 else last

    def knows(self, symbol: str) -> bool:
        return symbol in self._column

    def trades_on(self, symbol: str, day: date) -> bool:
        """Whether the panel has a price of the symbol on that date."""
        row = self.row_of(day)
        return row is not None and bool(self.tradable[row, self._column[symbol]])

    def tradable_rows(self, symbol: str, rows: list[int]) -> list[bool]:
        """For each row, whether the symbol has a price there."""
        chosen: list[bool] = self.tradable[rows, self._column[symbol]].tolist() if rows else []
        return chosen

    def bar(self, symbol: str, row: int, adjustment: str, known: int) -> dict[str, float] | None:
        """Open, high, low, close, volume of a row, adjusted for what is effective by row `known`; None without a bar.

        adjustment: raw, split, dividend or all.
        """
        n = self._column[symbol]
        if not self.tradable[row, n]:
            return None
        whole = self._whole[row, n] / self._whole[known, n]
        splits = self._splits[row, n] / self._splits[known, n]
        factor = {"raw": 1.0, "split": splits, "dividend": whole / splits, "all": whole}[adjustment]
        volume = 0.0 if self._volume is None else float(self._volume[row, n])
        if adjustment in ("split", "all"):
            volume /= float(splits)
        return {**{f: float(self._raw[f][row, n] * factor) for f in FIELDS}, "volume": volume}

    def at(self, symbol: str, moment: float) -> float | None:
        """The raw price at a moment: that of the open session, else the last close; None before the first bar."""
        session = self.sessions.opened(moment)
        if session is None:
            return None
        path = self.path(symbol, session) if moment < session.close else None
        if path is not None:
            return float(np.interp(moment, [t for t, _ in path], [p for _, p in path]))
        return self.last_close(symbol, moment)

    def last_close(self, symbol: str, moment: float) -> float | None:
        """The raw close of the last session that closed by a moment and has a bar."""
        session = self.sessions.closed(moment)
        row = -1 if session is None else bisect_right(self.dates, session.date) - 1
        if row < 0:
            return None
        n = self._column[symbol]
        last = int(self._last[row, n])
        # Carried over later actions: a split while the symbol did not trade still changes what a share is.
        return None if last < 0 else float(self._raw["close"][last, n] * self._splits[last, n] / self._splits[row, n])

    def path(self, symbol: str, session: Session) -> list[tuple[float, float]] | None:
        """(moment, raw price) at the corners of a session's path; None where the symbol has no bar that day."""
        row, n = self.row_of(session.date), self._column[symbol]
        if row is None or not self.tradable[row, n]:
            return None
        first, high, low, last = (float(self._raw[f][row, n]) for f in FIELDS)
        middle = (low, high) if last >= first else (high, low)
        third = (session.close - session.open) / 3
        times = (session.open, session.open + third, session.open + 2 * third, session.close)
        return list(zip(times, (first, *middle, last), strict=True))


def first_crossing(path: list[tuple[float, float]], start: float, limit: float, *, falling: bool) -> float | None:
    """The first moment from `start` on at which a path is at or below (falling), or at or above, a limit."""
    for (t0, p0), (t1, p1) in itertools.pairwise(path):
        if t1 < start:
            continue
        if t0 < start:
            p0 = p0 + (p1 - p0) * (start - t0) / (t1 - t0)
            t0 = start
        if (p0 <= limit) if falling else (p0 >= limit):
            return t0
        if (p1 <= limit) if falling else (p1 >= limit):
            return t0 + (t1 - t0) * (limit - p0) / (p1 - p0)
    return None


def _carried(
    tradable: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """[T, N] int64: the last row up to t with a price, -1 before the first."""
    rows = np.where(tradable, np.arange(len(tradable))[:, None], -1)
    return np.asarray(np.maximum.accumulate(rows, axis=0), dtype=np.int64)
