"""Clocks: system time, a manual clock for replays, and a clock synchronised with the broker's."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from finrl_pod.paper.domain.port import Clock

_TICK = timedelta(microseconds=1)  # a shorter wait would round to zero, and a loop waiting for it would never end


class SystemClock:
    """Real time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        if seconds > 0:
            time.sleep(min(seconds, max_real_seconds))

    def real_seconds(self, seconds: float) -> float:
        return max(seconds, 0.0)


class ManualClock:
    """Time that advances only by sleeping, so that a replay runs at full speed."""

    def __init__(self, start: datetime) -> None:
        self._start = start
        self._now = start

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:  # noqa: ARG002
        if seconds > 0:
            self._now += max(timedelta(seconds=seconds), _TICK)

    def real_seconds(self, seconds: float) -> float:  # noqa: ARG002
        return 0.0


class Reading(NamedTuple):
    """Wall and monotonic time read at one moment."""

    wall: datetime
    monotonic: float


class BrokerTime:
    """The host clock corrected by the broker clock. That clock decides when auctions take place."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = timedelta(0)
        self._last_query = self.reading()

    def reading(self) -> Reading:
        """Read the host clock, to be called before the broker clock is queried."""
        return Reading(self._clock.now(), self._clock.monotonic())

    def set(self, broker_now: datetime, before: Reading | None = None) -> timedelta:
        """Synchronise with the broker time and return the host clock's deviation from it.

        before: `reading` when the query was sent. The broker read its clock some time between then and now, so the
        offset is known to lie in a range; the previous offset is kept if it lies in that range, else clipped to it.
        """
        after = self.reading()
        self._last_query = after if before is None else before
        duration = max(after.monotonic - self._last_query.monotonic, 0.0)
        lowest = broker_now - after.wall
        self._offset = min(max(self._offset, lowest), lowest + timedelta(seconds=duration))
        return -self._offset

    @property
    def clock_slip(self) -> float:
        """Seconds by which wall time has advanced more than monotonic time since the last query of the broker clock.

        Not 0 after the host clock was set (either sign) or the machine was suspended (Linux stops `monotonic`).
        """
        now = self.reading()
        return (now.wall - self._last_query.wall).total_seconds() - (now.monotonic - self._last_query.monotonic)

    def now(self) -> datetime:
        return self._clock.now() + self._offset

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        self._clock.sleep(seconds, max_real_seconds)

    def real_seconds(self, seconds: float) -> float:
        return self._clock.real_seconds(seconds)
