"""Clocks: the machine's, one that is moved by hand, and either of them corrected by the broker's."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from finrl_pod.paper.brokers.port import Clock

_TICK = timedelta(microseconds=1)  # a shorter wait would round to none, and a loop that waits for it never end


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
    """Time that passes by sleeping alone: a replay goes as fast as it is computed."""

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
    """What a clock showed at one moment."""

    wall: datetime
    monotonic: float


class BrokerTime:
    """A clock set by the broker's: the host may be wrong, the auction is not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = timedelta(0)
        self._asked = self.reading()

    def reading(self) -> Reading:
        """The host's clock, to be taken before the broker is asked."""
        return Reading(self._clock.now(), self._clock.monotonic())

    def set(self, broker_now: datetime, asked: Reading | None = None) -> timedelta:
        """Follow the broker's time from now on; returns how far the host's clock is from it.

        asked: `reading` when the question was sent. The broker read its clock some time between then and now, so the
        offset lies in a range; what was held before stays where it is inside.
        """
        after = self.reading()
        self._asked = after if asked is None else asked
        taken = max(after.monotonic - self._asked.monotonic, 0.0)
        least = broker_now - after.wall
        self._offset = min(max(self._offset, least), least + timedelta(seconds=taken))
        return -self._offset

    @property
    def slipped(self) -> float:
        """Seconds by which the host's clock has moved more than time has passed since the broker was last asked.

        The host's clock was set (either sign), or the machine slept: then Linux lets `monotonic` stand still.
        """
        now = self.reading()
        return (now.wall - self._asked.wall).total_seconds() - (now.monotonic - self._asked.monotonic)

    def now(self) -> datetime:
        return self._clock.now() + self._offset

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        self._clock.sleep(seconds, max_real_seconds)

    def real_seconds(self, seconds: float) -> float:
        return self._clock.real_seconds(seconds)
