"""Pacing of the server clock: at a fixed speed, slower while requests arrive, or following its client's sleep."""

from __future__ import annotations

import dataclasses
import heapq
import time
from collections.abc import Callable
from itertools import count

from finrl_pod.fake_alpaca.scaled_clock import Pace, ScaledClock

_IDLE_SECONDS = 0.15  # real seconds without a request until a client is idle: time to write its journal
_NEVER = 1e12  # simulated time that is never reached
_LEASE_SECONDS = 0.5  # real: when the server process is stopped or starved, simulated time stops too
_FOLLOWING_POLL_SECONDS = 0.001
_POLL_SECONDS = 0.05


class ClockPacer:
    """Sets the pace of a clock at every `update` and at every request. Use it from the server thread only.

    busy_speed: upper bound of the slow speed while requests arrive and shortly afterwards; None for no bound.
    """

    def __init__(self, clock: ScaledClock, busy_speed: float | None) -> None:
        self._clock = clock
        self._busy_speed = busy_speed
        self._busy_until = 0.0
        self._idle_pace: Pace | None = None  # pace to return to; None while not slowed down
        self._awake_speed = 0.0
        self._asleep_speed = 0.0
        self._following = False
        self._fast_until = 0.0
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def set(self, pace: Pace) -> None:
        """Use a fixed pace from now on, independent of the client."""
        self._idle_pace = None
        self._following = False
        self._clock.set_pace(pace)

    def follow_client_sleep(self, awake_speed: float, asleep_speed: float) -> None:
        """Run at one speed while the client of the clock is awake, and at another until the end of each of its sleeps.

        The client loses no simulated time even on a slow machine.
        """
        self._idle_pace = None
        self._clock.set_pace(Pace(awake_speed, awake_speed), _LEASE_SECONDS)
        self._awake_speed = awake_speed
        self._asleep_speed = asleep_speed
        self._following = True
        self._fast_until = 0.0

    def schedule(self, moment: float, action: Callable[[], None]) -> None:
        """Call `action` at a simulated time. A clock that follows its client's sleep stops running fast there."""
        heapq.heappush(self._actions, (moment, next(self._number), action))
        self._fast_until = -1.0  # recompute: the clock may have been set to run past this moment

    def request_arrived(self) -> None:
        """Slow the clock down until no request has arrived for a while."""
        if self._busy_speed is None or self._following:
            return
        self._busy_until = time.monotonic() + _IDLE_SECONDS
        if self._idle_pace is None:
            self._idle_pace = self._clock.pace
            self._clock.set_pace(dataclasses.replace(self._idle_pace, slow=min(self._busy_speed, self._idle_pace.slow)))

    def update(self) -> None:
        """Run the actions that are due and set the pace for the current situation."""
        while self._actions and self._actions[0][0] <= self._clock.seconds():
            heapq.heappop(self._actions)[2]()
        if self._following:
            self._follow_sleep_mark()
        elif self._idle_pace is not None and time.monotonic() > self._busy_until:
            self._clock.set_pace(self._idle_pace)
            self._idle_pace = None

    @property
    def next_update(self) -> float:
        """Real seconds until `update` must be called again, at most."""
        if self._following:
            return _FOLLOWING_POLL_SECONDS
        wait = _POLL_SECONDS if self._idle_pace is None else _IDLE_SECONDS / 4
        return wait if not self._actions else min(wait, self._clock.real_until(self._actions[0][0]))

    def _follow_sleep_mark(self) -> None:
        until = self._clock.sleep_mark.until
        if self._actions:
            until = min(until, self._actions[0][0])
        if until == self._fast_until:
            return self._clock.renew()
        self._fast_until = until
        if until > self._clock.seconds():
            pace = Pace(self._awake_speed, self._asleep_speed, ((until, _NEVER),))
        else:
            pace = Pace(self._awake_speed, self._awake_speed)
        self._clock.set_pace(pace, _LEASE_SECONDS)
