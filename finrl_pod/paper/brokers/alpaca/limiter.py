"""No more requests than the broker takes, cancels first, and no request before the broker says so."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from finrl_pod.paper.brokers.port import Clock

LIMIT, WINDOW = 200, 60.0  # requests in that many seconds
URGENT = 20  # of them kept for cancels
_MARGIN = 0.5  # seconds beyond the window
_PATIENCE = 0.05  # real seconds between two looks of a thread that waits


class LimitSpent(Exception):
    """There is no room for `seconds` more of the clock's seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the limit of {LIMIT} requests a minute is spent for {seconds:.1f} s")
        self.seconds = seconds


class RequestLimiter:
    """Counts a request from before it is sent until a window after its answer: wherever in between the broker counts
    it, no window of the broker's holds more than the limit. Safe to use from several threads.
    """

    def __init__(self, clock: Clock, limit: int = LIMIT, window: float = WINDOW) -> None:
        self._clock = clock
        self._limit = limit
        self._window = window + _MARGIN
        self._reserve = min(URGENT, limit // 10)
        self._lock = threading.Condition()
        self._under_way = 0
        self._answered: deque[float] = deque()
        self._urgent_waiting = 0
        self._not_before = clock.monotonic()

    @contextmanager
    def request(self, *, urgent: bool = False, patience: float | None = None) -> Iterator[None]:
        """Around one request: waits for room, an urgent one before all others. patience: clock's seconds to wait at
        most; raises LimitSpent when it would take longer.
        """
        self._enter(urgent, patience)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._answered.append(self._clock.monotonic())
                self._lock.notify_all()

    def hold(self, seconds: float) -> None:
        """The broker told us to wait that long: no request leaves before."""
        with self._lock:
            self._not_before = max(self._not_before, self._clock.monotonic() + seconds)

    def _enter(self, urgent: bool, patience: float | None) -> None:
        end = None if patience is None else self._clock.monotonic() + patience
        with self._lock:
            self._urgent_waiting += urgent
            try:
                while (wait := self._wait(urgent)) is not None:
                    now = self._clock.monotonic()
                    if end is not None and now + wait > end:
                        raise LimitSpent(wait)
                    self._lock.wait(min(self._clock.real_seconds(wait), _PATIENCE))
                self._under_way += 1
            finally:
                self._urgent_waiting -= urgent

    def _wait(self, urgent: bool) -> float | None:
        """The clock's seconds until there may be room, None when there is."""
        now = self._clock.monotonic()
        while self._answered and self._answered[0] <= now - self._window:
            self._answered.popleft()
        if now < self._not_before:
            return self._not_before - now
        if self._urgent_waiting and not urgent:
            return 0.0
        room = self._limit - self._under_way - len(self._answered) - (0 if urgent else self._reserve)
        if room > 0:
            return None
        if not self._answered:
            return 0.0
        # The one whose leaving makes room for one more.
        leaving = min(-room, len(self._answered) - 1)
        return max(self._answered[leaving] + self._window - now, 0.0)
