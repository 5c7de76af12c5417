"""A clock that runs faster or slower than real time, shared between the fake server and its clients through a file.

It runs slowly around the open and the close of the exchange and fast otherwise, so that a year passes in minutes. All
processes of a machine share the monotonic clock: a client that reads the anchor from the file computes the same time.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import TypeAdapter

from finrl_pod.errors import InputError
from finrl_pod.types import Floats

MAX_SPEED = 1e7  # simulated seconds per real second: four months
_POLL_SECONDS = 0.001  # real seconds between two checks of a sleeping client


@dataclass(frozen=True)
class Pace:
    """Speed of a simulated clock in simulated seconds per real second: `slow` inside the windows, `fast` outside.

    A speed of 0 stops the clock. windows: (start, end) in UTC epoch seconds, increasing and not overlapping.
    Raises InputError for a speed below 0 or above MAX_SPEED and for overlapping windows.
    """

    slow: float = 1.0
    fast: float = 1.0
    windows: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        for name, speed in (("slow", self.slow), ("fast", self.fast)):
            if not 0.0 <= speed <= MAX_SPEED:
                raise InputError(f"clock speed `{name}` must be from 0 to {MAX_SPEED:,.0f}, got {speed}")
        if self._edges != sorted(self._edges):
            raise InputError("clock windows must be in increasing order and must not overlap")

    def speed_at(self, simulated_time: float) -> tuple[float, float]:
        """(speed at a simulated time, simulated time at which the speed changes next)."""
        edges = self._edges
        i = bisect_right(edges, simulated_time)
        return (self.slow if i % 2 else self.fast), (edges[i] if i < len(edges) else float("inf"))

    @cached_property
    def _edges(self) -> list[float]:
        return [edge for window in self.windows for edge in window]

    def advance(self, simulated_time: float, real: float) -> float:
        """Simulated time `real` seconds after the simulated time."""
        while real > 0.0:
            speed, until = self.speed_at(simulated_time)
            if speed == 0.0:
                return simulated_time
            seconds_needed = (until - simulated_time) / speed
            if real < seconds_needed:
                return simulated_time + real * speed
            real = real - seconds_needed
            simulated_time = until
        return simulated_time

    def real_between(self, start: float, end: float) -> float:
        """Real seconds between two simulated times; infinite if the clock stops before `end`."""
        real = 0.0
        while start < end:
            speed, until = self.speed_at(start)
            if speed == 0.0:
                return float("inf")
            stop = min(until, end)
            real = real + (stop - start) / speed
            start = stop
        return real


@dataclass(frozen=True)
class Anchor:
    """Reference point of a simulated clock: simulated time (UTC epoch seconds) at monotonic time `real`.

    pace: applies from this point on. lease: real seconds after which the clock stops unless its owner renews it.
    """

    real: float
    simulated_time: float
    pace: Pace
    lease: float = math.inf

    def seconds(self) -> float:
        """Current simulated time, UTC epoch seconds."""
        return self.pace.advance(self.simulated_time, min(time.monotonic() - self.real, self.lease))


_ANCHOR = TypeAdapter(Anchor)


class ScaledClock:
    """Simulated clock of the fake server. It can jump ahead and change its pace; safe to use from several threads.

    path: file through which other processes read the clock (see `ClockClient`), or None.
    sleep_mark: [1] end of the sleep of the client in UTC epoch seconds, 0 while it is awake; never set without a path.
    """

    def __init__(self, start: datetime, pace: Pace, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._anchor = Anchor(time.monotonic(), start.timestamp(), pace)
        self._write()
        self.sleep_mark = np.zeros(1) if path is None else _sleep_mark(path, "w+")

    @property
    def pace(self) -> Pace:
        """Pace that applies now."""
        return self._anchor.pace

    def seconds(self) -> float:
        """Current simulated time, UTC epoch seconds."""
        return self._anchor.seconds()

    def now(self) -> datetime:
        """Current simulated time, timezone-aware in UTC."""
        return datetime.fromtimestamp(self.seconds(), UTC)

    def real_until(self, simulated_time: float) -> float:
        """Real seconds until a simulated time: 0 if it has passed, infinite if the clock stops before it."""
        return self._anchor.pace.real_between(self.seconds(), simulated_time)

    def jump(self, to: datetime) -> None:
        """Move the clock to a later time at once. Raises InputError for an earlier one: it never runs backwards."""
        with self._lock:
            now = self.seconds()
            if to.timestamp() < now:
                raise InputError(
                    f"cannot move the clock back from {self.now().isoformat()} to {to.isoformat()}; "
                    "jump to a later time"
                )
            self._anchor = Anchor(time.monotonic(), to.timestamp(), self._anchor.pace)
            self._write()

    def set_pace(self, pace: Pace, lease: float = math.inf) -> None:
        """Change the pace from now on. With a finite lease, the clock stops unless `renew` is called in time."""
        with self._lock:
            self._anchor = Anchor(time.monotonic(), self.seconds(), pace, lease)
            self._write()

    def renew(self) -> None:
        """Renew the lease once half of it has passed; time during which the clock was stopped is not made up for."""
        anchor = self._anchor
        if time.monotonic() - anchor.real > anchor.lease / 2:
            self.set_pace(anchor.pace, anchor.lease)

    def _write(self) -> None:
        if self._path is None:
            return
        anchor = self._anchor
        text = json.dumps(dataclasses.asdict(anchor))
        # Replaced atomically for readers, but not synced to disk: it is useless after a crash and changes often.
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self._path)


def _sleep_mark(clock: Path, mode: Literal["w+", "r+"]) -> Floats:
    """The shared memory next to a clock file that holds the sleep mark. Raises OSError or ValueError if it is missing.

    A process that is killed during a sleep leaves its mark behind.
    """
    return np.memmap(clock.with_name(f"{clock.name}.asleep"), np.float64, mode, shape=(1,))


class ClockClient:
    """Another process's view of a `ScaledClock`, read from its file. Satisfies the `Clock` protocol of paper trading.

    min_real_seconds: lower bound of `real_seconds`, however fast simulated time runs.
    Raises InputError if the file is missing or is not a clock file.
    """

    def __init__(self, path: Path, min_real_seconds: float = 0.005) -> None:
        self._path = path
        self._min_real_seconds = min_real_seconds
        self._file_version: tuple[int, int] = (-1, -1)  # (inode, mtime in ns)
        self._anchor = self._read()
        self._start = self.seconds()
        try:
            self._sleep_mark = _sleep_mark(path, "r+")
        except (OSError, ValueError):
            raise _not_a_clock(path) from None

    def seconds(self) -> float:
        """Current simulated time, UTC epoch seconds. Raises InputError if the file is missing or damaged."""
        return self._read().seconds()

    def now(self) -> datetime:
        """Current simulated time, timezone-aware in UTC."""
        return datetime.fromtimestamp(self.seconds(), UTC)

    def monotonic(self) -> float:
        """Simulated seconds since this client was created."""
        return self.seconds() - self._start

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        """Sleep for that many simulated seconds, but return after `max_real_seconds` of real time at the latest.

        The sleep mark is set meanwhile: the server may run the clock fast until then.
        """
        end = self.seconds() + seconds
        deadline = time.monotonic() + max_real_seconds
        self._sleep_mark[0] = end
        try:
            while (now := self.seconds()) < end and (left := deadline - time.monotonic()) > 0:
                time.sleep(min(self._read().pace.real_between(now, end), left, _POLL_SECONDS))
        finally:
            self.wake()

    def wake(self) -> None:
        """Clear the sleep mark, then wait until a server that was running the clock fast has slowed it down."""
        self._sleep_mark[0] = 0.0
        while True:
            anchor = self._read()
            windows = anchor.pace.windows
            # Only a server that follows the sleep of its client sets a lease.
            if not (math.isfinite(anchor.lease) and windows and anchor.seconds() < windows[0][0]):
                return
            time.sleep(_POLL_SECONDS)

    def real_seconds(self, seconds: float) -> float:
        """Real duration of that many simulated seconds at the current pace, at least `min_real_seconds`."""
        now = self.seconds()
        real = self._read().pace.real_between(now, now + max(seconds, 0.0))
        return max(min(real, seconds), self._min_real_seconds)

    def _read(self) -> Anchor:
        try:
            status = os.stat(self._path)
            version = (status.st_ino, status.st_mtime_ns)
            if version != self._file_version:
                self._anchor = _ANCHOR.validate_json(self._path.read_bytes())
                self._file_version = version
        except (OSError, ValueError):
            raise _not_a_clock(self._path) from None
        return self._anchor


def _not_a_clock(path: Path) -> InputError:
    return InputError(f"{path} holds no clock; start `finrl-pod paper fake-alpaca` with --clock {path}")


_NEVER = 1e12  # simulated time that is never reached
_LEASE_SECONDS = 0.5  # real: when the server process is stopped or starved, simulated time stops too
_IDLE_POLL_SECONDS = 0.05  # real seconds between two updates without a client to follow


class ClockPacer:
    """Sets the pace of a clock at every `update`. Use it from the server thread only."""

    def __init__(self, clock: ScaledClock) -> None:
        self._clock = clock
        self._awake_speed = 0.0
        self._asleep_speed = 0.0
        self._following = False
        self._fast_until = 0.0
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def set(self, pace: Pace) -> None:
        """Use a fixed pace from now on, independent of the client."""
        self._following = False
        self._clock.set_pace(pace)

    def follow_client_sleep(self, awake_speed: float, asleep_speed: float) -> None:
        """Run at one speed while the client of the clock is awake, and at another until the end of each of its sleeps.

        The client loses no simulated time even on a slow machine.
        """
        self._clock.set_pace(Pace(awake_speed, awake_speed), _LEASE_SECONDS)
        self._awake_speed = awake_speed
        self._asleep_speed = asleep_speed
        self._following = True
        self._fast_until = 0.0

    def schedule(self, moment: float, action: Callable[[], None]) -> None:
        """Call `action` at a simulated time. A clock that follows its client's sleep stops running fast there."""
        heapq.heappush(self._actions, (moment, next(self._number), action))
        self._fast_until = -1.0  # recompute: the clock may have been set to run past this moment

    def update(self) -> None:
        """Run the actions that are due and set the pace for the current situation."""
        while self._actions and self._actions[0][0] <= self._clock.seconds():
            heapq.heappop(self._actions)[2]()
        if self._following:
            self._follow_sleep_mark()

    @property
    def next_update(self) -> float:
        """Real seconds until `update` must be called again, at most."""
        if self._following:
            return _POLL_SECONDS
        wait = self._clock.real_until(self._actions[0][0]) if self._actions else _IDLE_POLL_SECONDS
        return min(_IDLE_POLL_SECONDS, wait)

    def _follow_sleep_mark(self) -> None:
        until = float(self._clock.sleep_mark[0])
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
