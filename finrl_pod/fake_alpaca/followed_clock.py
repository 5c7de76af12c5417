"""The side of a scaled clock that a daemon holds: it reads what the owner keeps in a file, and says when it sleeps."""

from __future__ import annotations

import json
import math
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca.scaled_clock import Anchor, Pace, Sleeper, seconds_of

_LOOK = 0.001  # real seconds after which a sleeper looks whether the clock was changed


class FollowedClock:
    """Another process's side, a `Clock` of paper trading: reads the anchor that a `ScaledClock` keeps in a file.

    least: real seconds below which `real_seconds` does not go, however fast simulated time runs.
    Raises InputError for a file that is no clock.
    """

    def __init__(self, path: Path, least: float = 0.005) -> None:
        self._path = path
        self._least = least
        self._seen: tuple[int, int] = (-1, -1)
        self._anchor = self._read()
        self._start = self.seconds()
        try:
            self._sleeper = Sleeper.found(path)
        except (OSError, ValueError):
            raise _no_clock(path) from None

    def seconds(self) -> float:
        """The simulated moment, UTC epoch seconds. Raises InputError when the file is gone or damaged."""
        return seconds_of(self._read())

    def now(self) -> datetime:
        """The same, aware and in UTC."""
        return datetime.fromtimestamp(self.seconds(), UTC)

    def monotonic(self) -> float:
        """Simulated seconds since this side of the clock was made."""
        return self.seconds() - self._start

    def sleep(self, seconds: float, most: float = float("inf")) -> None:
        """Wait until that many simulated seconds have passed, whatever its owner does to the clock meanwhile.

        most: real seconds after which it returns all the same. The owner is told: it may let time fly until then.
        """
        end, last = self.seconds() + seconds, time.monotonic() + most
        self._sleeper.mark(end)
        try:
            while (now := self.seconds()) < end and (left := last - time.monotonic()) > 0:
                time.sleep(min(self._read().pace.real_between(now, end), left, _LOOK))
        finally:
            self.wake()

    def wake(self) -> None:
        """Say that nobody sleeps any more; where the owner lets time fly meanwhile, wait until it has taken note."""
        self._sleeper.mark(0.0)
        while self._flies(self._read()):
            time.sleep(_LOOK)

    def _flies(self, anchor: Anchor) -> bool:
        """Only an owner that follows our sleep gives its anchors a lease; a window then begins where we would wake."""
        windows = anchor.pace.windows
        return math.isfinite(anchor.lease) and bool(windows) and seconds_of(anchor) < windows[0][0]

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
                self._anchor = Anchor(float(values["real"]), float(values["simulated"]), pace, float(values["lease"]))
                self._seen = seen
        except (OSError, ValueError, KeyError, TypeError):
            raise _no_clock(self._path) from None
        return self._anchor


def _no_clock(path: Path) -> InputError:
    return InputError(f"{path} holds no clock: is the fake server running, and was it started with it?")
