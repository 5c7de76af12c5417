"""How fast the stand-in's time runs: as told, slower while somebody asks, or just as its daemon's sleep allows."""

from __future__ import annotations

import dataclasses
import heapq
import time
from collections.abc import Callable
from itertools import count

from finrl_pod.fake_alpaca.scaled_clock import Pace, ScaledClock

_QUIET = 0.15  # real seconds without a request: a client that writes its journal between two is still busy
_FOR_GOOD = 1e12  # a moment that never comes
_LEASE = 0.5  # real seconds: a machine that is stopped, or too busy for this process, stops simulated time


class Pacer:
    """Sets the pace of a clock, at every `look` and at every request. Used from the server's thread alone.

    busy_speed: the slow speed of the pace while somebody asks (and a moment longer); None leaves it.
    """

    def __init__(self, clock: ScaledClock, busy_speed: float | None) -> None:
        self._clock = clock
        self._busy_speed = busy_speed
        self._busy_until = 0.0
        self._quiet: Pace | None = None
        self._awake, self._asleep = 0.0, 0.0
        self._following = False
        self._asleep_until = 0.0
        self._deeds: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def set(self, pace: Pace) -> None:
        """Go on at another pace, whatever the daemon does."""
        self._quiet = None
        self._following = False
        self._clock.set_pace(pace)

    def follow(self, awake: float, asleep: float) -> None:
        """From now on time runs at one speed while the daemon that follows the clock is awake, and at another one while
        it sleeps, until the moment at which it will wake: however slow the machine is, no simulated time is lost.
        """
        self._quiet = None
        self._clock.set_pace(Pace(awake, awake), _LEASE)
        self._awake, self._asleep, self._following = awake, asleep, True
        self._asleep_until = 0.0

    def at(self, moment: float, deed: Callable[[], None]) -> None:
        """Do something at a simulated moment. Time that flies lands just there."""
        heapq.heappush(self._deeds, (moment, next(self._number), deed))
        self._asleep_until = -1.0  # what was reckoned with before may be too far

    def request(self) -> None:
        """A request came: time runs slowly from now on, until none has come for a while."""
        if self._busy_speed is None or self._following:
            return
        self._busy_until = time.monotonic() + _QUIET
        if self._quiet is None:
            self._quiet = self._clock.pace
            self._clock.set_pace(dataclasses.replace(self._quiet, slow=min(self._busy_speed, self._quiet.slow)))

    def look(self) -> None:
        """Do what is due, and set the pace that now is right."""
        while self._deeds and self._deeds[0][0] <= self._clock.seconds():
            heapq.heappop(self._deeds)[2]()
        if self._following:
            self._follow_sleeper()
        elif self._quiet is not None and time.monotonic() > self._busy_until:
            self._clock.set_pace(self._quiet)
            self._quiet = None

    @property
    def next_look(self) -> float:
        """Real seconds until the next one, at most."""
        if self._following:
            return 0.001
        wait = 0.05 if self._quiet is None else _QUIET / 4
        return wait if not self._deeds else min(wait, self._clock.real_until(self._deeds[0][0]))

    def _follow_sleeper(self) -> None:
        until = self._clock.sleeper.until
        if self._deeds:
            until = min(until, self._deeds[0][0])
        if until == self._asleep_until:
            return self._clock.renew()
        self._asleep_until = until
        if until > self._clock.seconds():
            self._clock.set_pace(Pace(self._awake, self._asleep, ((until, _FOR_GOOD),)), _LEASE)
        else:
            self._clock.set_pace(Pace(self._awake, self._awake), _LEASE)
