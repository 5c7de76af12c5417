"""One clock for a simulated broker and everything that talks to it: real time, stretched, and shared by way of a file.

Between now and a moment in the past lies a number of real seconds, measured on the machine's monotonic clock, which all
of its processes share. `Pace` turns them into simulated seconds: fast when nothing happens, slow in windows around the
opening and the close of the exchange. A year passes in minutes, and a daemon still finds time to act in the windows.
"""

from __future__ import annotations

import json
import os
import threading
import time
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from finrl_pod.errors import InputError

_LOOK = 0.02  # real seconds after which a sleeper looks whether the clock was changed


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
    """At `real` seconds of the monotonic clock it was `simulated` (UTC epoch seconds); `pace` holds from then on."""

    real: float
    simulated: float
    pace: Pace


class ScaledClock:
    """The owner's side: tells the time, and may jump ahead or change its pace. Safe to use from several threads.

    path: where to keep the anchor for other processes (`FollowedClock` reads it), or None.
    """

    def __init__(self, start: datetime, pace: Pace, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._anchor = Anchor(time.monotonic(), start.timestamp(), pace)
        self._write()

    @property
    def pace(self) -> Pace:
        return self._anchor.pace

    def seconds(self) -> float:
        """The simulated moment, UTC epoch seconds."""
        return _seconds(self._anchor)

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

    def set_pace(self, pace: Pace) -> None:
        """Go on at another pace."""
        with self._lock:
            self._anchor = Anchor(time.monotonic(), self.seconds(), pace)
            self._write()

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
            }
        )
        # Whole or not there for a reader, but not synced to the disk: it is worthless after a crash, and changes often.
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self._path)


class FollowedClock:
    """Another process's side, a `Clock` of paper trading: reads the anchor that a `ScaledClock` keeps in a file.

    least: real seconds below which `real_seconds` does not go, however fast simulated time runs.
    """

    def __init__(self, path: Path, least: float = 0.005) -> None:
        self._path = path
        self._least = least
        self._seen: tuple[int, int] = (-1, -1)
        self._anchor = self._read()
        self._start = self.seconds()

    def seconds(self) -> float:
        """The simulated moment, UTC epoch seconds. Raises InputError when the file is gone or damaged."""
        return _seconds(self._read())

    def now(self) -> datetime:
        """The same, aware and in UTC."""
        return datetime.fromtimestamp(self.seconds(), UTC)

    def monotonic(self) -> float:
        """Simulated seconds since this side of the clock was made."""
        return self.seconds() - self._start

    def sleep(self, seconds: float) -> None:
        """Wait until that many simulated seconds have passed, whatever its owner does to the clock meanwhile."""
        end = self.seconds() + seconds
        while (now := self.seconds()) < end:
            time.sleep(min(self._read().pace.real_between(now, end), _LOOK))

    def real_seconds(self, seconds: float) -> float:
        """How long that lasts on the wall at the present pace, `least` at least."""
        now = self.seconds()
        real = self._read().pace.real_between(now, now + max(seconds, 0.0))
        return max(min(real, seconds), self._least)

    def _read(self) -> Anchor:
        try:
            status = os.stat(self._path)
            seen = (status.st_ino, status.st_mtime_ns)
            if seen != self._seen:
                values = json.loads(self._path.read_text(encoding="utf-8"))
                windows = tuple((float(a), float(b)) for a, b in values["windows"])
                pace = Pace(float(values["slow"]), float(values["fast"]), windows)
                self._anchor = Anchor(float(values["real"]), float(values["simulated"]), pace)
                self._seen = seen
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(
                f"{self._path} holds no clock: is the fake server running, and was it started with it?"
            ) from None
        return self._anchor


def _seconds(anchor: Anchor) -> float:
    return anchor.pace.after(anchor.simulated, time.monotonic() - anchor.real)
