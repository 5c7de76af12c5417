"""Rate limiter for requests to a broker: cancels go first, and a wait demanded by the broker is respected."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from finrl_pod.paper.domain.port import Clock

MAX_REQUESTS = 200
WINDOW_SECONDS = 60.0
URGENT_RESERVE = 20  # requests of each window that are kept for cancels
_WINDOW_MARGIN = 0.5  # seconds
_POLL_SECONDS = 0.05  # real seconds between two checks of a waiting thread


class RateLimitReached(Exception):
    """No request can be sent for another `seconds` of the clock."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"limit of {MAX_REQUESTS} requests per minute reached, free again in {seconds:.1f} s")
        self.seconds = seconds


class RateLimiter:
    """Allows `limit` requests in any window of seconds of the clock. Safe to use from several threads.

    A request counts from before it is sent until one window after its response. Wherever in between the broker counts
    it, none of the broker windows exceeds the limit.
    """

    def __init__(self, clock: Clock, limit: int = MAX_REQUESTS, window: float = WINDOW_SECONDS) -> None:
        self._clock = clock
        self._limit = limit
        self._window = window + _WINDOW_MARGIN
        self._reserve = min(URGENT_RESERVE, limit // 10)
        self._lock = threading.Condition()
        self._in_flight = 0
        self._completed: deque[float] = deque()
        self._urgent_waiting = 0
        self._not_before = clock.monotonic()

    @contextmanager
    def request(self, *, urgent: bool = False, max_wait: float | None = None) -> Iterator[None]:
        """Context of one request: waits until it may be sent, urgent requests before all others.

        max_wait: seconds of the clock; raises RateLimitReached if the wait would take longer.
        """
        self._acquire(urgent, max_wait)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1
                self._completed.append(self._clock.monotonic())
                self._lock.notify_all()

    def hold(self, seconds: float) -> None:
        """Send no request for that many seconds, because the broker demanded it."""
        with self._lock:
            self._not_before = max(self._not_before, self._clock.monotonic() + seconds)

    def _acquire(self, urgent: bool, max_wait: float | None) -> None:
        deadline = None if max_wait is None else self._clock.monotonic() + max_wait
        with self._lock:
            self._urgent_waiting += urgent
            try:
                while (wait := self._required_wait(urgent)) is not None:
                    now = self._clock.monotonic()
                    if deadline is not None and now + wait > deadline:
                        raise RateLimitReached(wait)
                    self._lock.wait(min(self._clock.real_seconds(wait), _POLL_SECONDS))
                self._in_flight += 1
            finally:
                self._urgent_waiting -= urgent

    def _required_wait(self, urgent: bool) -> float | None:
        """Seconds of the clock until a request may be possible; None if it is possible now."""
        now = self._clock.monotonic()
        while self._completed and self._completed[0] <= now - self._window:
            self._completed.popleft()
        if now < self._not_before:
            return self._not_before - now
        if self._urgent_waiting and not urgent:
            return 0.0
        free = self._limit - self._in_flight - len(self._completed) - (0 if urgent else self._reserve)
        if free > 0:
            return None
        if not self._completed:
            return 0.0
        # The completed request whose expiry frees one slot.
        expiring = min(-free, len(self._completed) - 1)
        return max(self._completed[expiring] + self._window - now, 0.0)
