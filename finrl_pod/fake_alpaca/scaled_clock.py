"""One clock for a simulated broker and everything that talks to it: real time, stretched, and shared by way of a file.

Between now and a moment in the past lies a number of real seconds, measured on the machine's monotonic clock, which all
of its processes share. `Pace` turns them into simulated seconds: fast when nothing happens, slow in windows around the
opening and the close of the exchange. A year passes in minutes, and a daemon still finds time to act in the windows.
`FollowedClock` is the side of the other processes.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import threading
import time
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from finrl_pod.errors import InputError

_MARK = struct.Struct("<d")


@dataclass(frozen=True)
class Pace:
    """Simulated seconds for each real second: `slow` inside the windows, `fast` outside; 0 stands still.

    windows: (start, end) in UTC epoch seconds, increasing and apart from each other.
    """

    slow: float = 1.0
    fast: float = 1.0
    windows: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        for name, speed in (("slow", self.slow), ("fast", self.fast)):
            if not 0.0 <= speed < float("inf"):
                raise InputError(f"the clock's {name} speed must be 0 or more, got {speed}")
        edges = [edge for window in self.windows for edge in window]
        if edges != sorted(edges):
            raise InputError("the windows of a clock must increase and not overlap")

    def piece(self, simulated: float) -> tuple[float, float]:
        """(speed at a simulated moment, the moment at which it changes)."""
        edges = self._edges
        i = bisect_right(edges, simulated)
        return (self.slow if i % 2 else self.fast), (edges[i] if i < len(edges) else float("inf"))

    @property
    def _edges(self) -> list[float]:
        # Frozen and without slots: computed once and kept beside the fields.
        kept = self.__dict__.get("_kept")
        if kept is None:
            kept = [edge for window in self.windows for edge in window]
            self.__dict__["_kept"] = kept
        return kept

    def after(self, simulated: float, real: float) -> float:
        """The simulated moment `real` seconds after `simulated`."""
        while real > 0.0:
            speed, until = self.piece(simulated)
            if speed == 0.0:
                return simulated
            needed = (until - simulated) / speed
            if real < needed:
                return simulated + real * speed
            real, simulated = real - needed, until
        return simulated

    def real_between(self, start: float, end: float) -> float:
        """Real seconds from one simulated moment to a later one; infinite where the clock stands still before it."""
        real = 0.0
        while start < end:
            speed, until = self.piece(start)
            if speed == 0.0:
                return float("inf")
            stop = min(until, end)
            real, start = real + (stop - start) / speed, stop
        return real


@dataclass(frozen=True)
class Anchor:
    """At `real` seconds of the monotonic clock it was `simulated` (UTC epoch seconds); `pace` holds from then on.

    lease: real seconds after which time stands still unless its owner has written another anchor.
    """

    real: float
    simulated: float
    pace: Pace
    lease: float = math.inf


class ScaledClock:
    """The owner's side: tells the time, and may jump ahead or change its pace. Safe to use from several threads.

    path: where to keep the anchor for other processes (`FollowedClock` reads it), or None.
    sleeper: until when the follower has said to sleep; of a clock without a path nobody ever does.
    """

    def __init__(self, start: datetime, pace: Pace, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._anchor = Anchor(time.monotonic(), start.timestamp(), pace)
        self._write()
        self.sleeper = Sleeper() if path is None else Sleeper.made(path)

    @property
    def pace(self) -> Pace:
        return self._anchor.pace

    def seconds(self) -> float:
        """The simulated moment, UTC epoch seconds."""
        return seconds_of(self._anchor)

    def now(self) -> datetime:
        """The same, aware and in UTC."""
        return datetime.fromtimestamp(self.seconds(), UTC)

    def real_until(self, simulated: float) -> float:
        """Real seconds until a simulated moment: 0 when it has passed, infinite when the clock stands still."""
        return self._anchor.pace.real_between(self.seconds(), simulated)

    def jump(self, to: datetime) -> None:
        """Go ahead to a later moment at once. Raises InputError for an earlier one: time never runs backwards."""
        with self._lock:
            now = self.seconds()
            if to.timestamp() < now:
                raise InputError(
                    f"a clock cannot go back: it is {self.now().isoformat()}, {to.isoformat()} was asked for"
                )
            self._anchor = Anchor(time.monotonic(), to.timestamp(), self._anchor.pace)
            self._write()

    def set_pace(self, pace: Pace, lease: float = math.inf) -> None:
        """Go on at another pace; with a lease, only as long as this side keeps calling `renew`."""
        with self._lock:
            self._anchor = Anchor(time.monotonic(), self.seconds(), pace, lease)
            self._write()

    def renew(self) -> None:
        """Go on, where half of the lease is over: time that stood still meanwhile is not caught up with."""
        anchor = self._anchor
        if time.monotonic() - anchor.real > anchor.lease / 2:
            self.set_pace(anchor.pace, anchor.lease)

    def _write(self) -> None:
        if self._path is None:
            return
        anchor = self._anchor
        text = json.dumps(
            {
                "real": anchor.real,
                "simulated": anchor.simulated,
                "slow": anchor.pace.slow,
                "fast": anchor.pace.fast,
                "windows": anchor.pace.windows,
                "lease": anchor.lease,
            }
        )
        # Whole or not there for a reader, but not synced to the disk: it is worthless after a crash, and changes often.
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self._path)


class Sleeper:
    """A moment in memory that owner and follower of a clock share: until when the follower sleeps, 0 while it is awake.

    A process that was killed in its sleep leaves its mark behind.
    """

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        self._memory = bytearray(_MARK.size) if memory is None else memory

    @classmethod
    def made(cls, clock: Path) -> Sleeper:
        """The owner's, beside the file of the clock; nobody sleeps."""
        path = _mark_beside(clock)
        path.write_bytes(_MARK.pack(0.0))
        return cls.found(clock)

    @classmethod
    def found(cls, clock: Path) -> Sleeper:
        """The follower's. Raises OSError and ValueError where there is none."""
        with _mark_beside(clock).open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), _MARK.size))

    @property
    def until(self) -> float:
        """UTC epoch seconds."""
        return float(_MARK.unpack_from(self._memory)[0])

    def mark(self, until: float) -> None:
        """0 wakes it up."""
        _MARK.pack_into(self._memory, 0, until)


def _mark_beside(clock: Path) -> Path:
    return clock.with_name(f"{clock.name}.asleep")


def seconds_of(anchor: Anchor) -> float:
    return anchor.pace.after(anchor.simulated, min(time.monotonic() - anchor.real, anchor.lease))
