"""Minute bars on the price path of a session. Moments are UTC epoch seconds.

Volume is U-shaped over the session, as on real exchanges; the minutes add up to the volume of the day.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from finrl_pod.fake_alpaca.prices import Prices
from finrl_pod.fake_alpaca.sessions import Session
from finrl_pod.fake_alpaca.wire_format import ApiError, timestamp

_TIMEFRAME = re.compile(r"(\d{1,2})(Min|T)$")
_LENGTHS = (1, 2, 3, 5, 6, 10, 15, 30)  # divide half an hour, so that bars start on the clock and at the open


def minutes_of(timeframe: str) -> int:
    """Minutes of a timeframe such as "1Min" or "5T". Raises ApiError for one that is not served."""
    found = _TIMEFRAME.match(timeframe)
    if found is None or int(found[1]) not in _LENGTHS:
        served = ", ".join(f"{n}Min" for n in _LENGTHS)
        raise ApiError(400, None, f"invalid timeframe: {timeframe[:20]!r}; this fake server has 1Day and {served}")
    return int(found[1])


def bar_starts(sessions: Sequence[Session], minutes: int, start: float, end: float, now: float) -> list[float]:
    """Starts of the bars with start <= their start <= end that are complete at `now`."""
    length = 60.0 * minutes
    return [
        at
        for session in sessions
        for at in (session.open + length * k for k in range(int((session.close - session.open) // length)))
        if start <= at <= end and at + length <= now
    ]


def minute_bar(
    prices: Prices, symbol: str, session: Session, start: float, minutes: int, adjustment: str = "raw", as_of: int = -1
) -> dict[str, Any] | None:
    """Bar of `minutes` from `start`; None if the symbol has no bar that day. as_of: row that it is adjusted as of."""
    path = prices.path(symbol, session)
    row = prices.row_of(session.date)
    if path is None or row is None:
        return None
    day = prices.bar(symbol, row, "raw", as_of)
    adjusted = prices.bar(symbol, row, adjustment, as_of)
    if day is None or adjusted is None:
        return None
    factor = adjusted["close"] / day["close"] if day["close"] else 1.0
    end = start + 60.0 * minutes
    times = [t for t, _ in path]
    values = [p for _, p in path]
    first, last = (float(np.interp(t, times, values)) for t in (start, end))
    corners = [p for t, p in path if start < t < end]
    reached = [p * factor for p in (first, last, *corners)]
    volume = adjusted["volume"] * _volume_share(session, start, end)
    bar = {"t": timestamp(start)[:19] + "Z", "o": first * factor, "h": max(reached), "l": min(reached)}
    return bar | {"c": last * factor, "v": int(volume), "n": minutes, "vw": (first + last) / 2 * factor}


def _volume_share(session: Session, start: float, end: float) -> float:
    """Share of the volume of the day between two moments: the integral of a parabola with its low at midday."""
    length = session.close - session.open

    def until(moment: float) -> float:
        x = (moment - session.open) / length - 0.5
        return 0.6 * x + 4 / 3 * x**3

    return (until(end) - until(start)) / (until(session.close) - until(session.open))
