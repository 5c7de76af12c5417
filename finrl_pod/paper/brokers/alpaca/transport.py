"""HTTP transport of all requests to Alpaca: allow-list, rate limit, time and size limits, no redirects or proxies."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from finrl_pod.errors import AddressNotAllowed
from finrl_pod.paper.brokers.alpaca.credentials import within
from finrl_pod.paper.deadline import RequestDeadline, watch_connections
from finrl_pod.paper.domain.port import Clock

if TYPE_CHECKING:
    from requests import Session

MAX_REQUESTS = 200
WINDOW_SECONDS = 60.5  # a minute and a margin
URGENT_RESERVE = 20  # requests of each window that are kept for cancels
_POLL_SECONDS = 0.05  # real seconds between two checks of a waiting thread


class RateLimitReached(Exception):
    """No request can be sent for another `seconds` of the clock."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"limit of {MAX_REQUESTS} requests per minute reached, free again in {seconds:.1f} s")
        self.seconds = seconds


class RateLimiter:
    """Allows `limit` requests in any minute of the clock. Safe to use from several threads.

    A request counts from before it is sent until one window after its response. Wherever in between the broker counts
    it, none of the broker windows exceeds the limit.
    """

    def __init__(self, clock: Clock, limit: int = MAX_REQUESTS) -> None:
        self._clock = clock
        self._limit = limit
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
        while self._completed and self._completed[0] <= now - WINDOW_SECONDS:
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
        return max(self._completed[expiring] + WINDOW_SECONDS - now, 0.0)


CONNECT = 5.0  # in seconds of the clock; their sum is the time limit of the whole request
ANSWER = 15.0
TRADING_METHODS = ("GET", "POST", "DELETE")
DATA_METHODS = ("GET",)
MAX_PAGES = 200  # of one answer that the client library reads; 10,000 bars each
MAX_SUBMIT_WAIT = 2.0  # seconds of the clock that an order waits for the rate limiter before it is rejected
_MIN_TIMEOUT = 2.0  # real seconds: a socket needs that however fast a scaled clock runs
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_LATE = "the response did not end within the limit of time"
_MAX_TEXT_SHOWN = 200  # characters of a response that is not JSON
_MAX_RATE_LIMIT_WAIT = 90.0  # seconds: a limit per minute never needs more


class RequestContext:
    """State that all requests to one broker share: clock, rate limiter, and the pages of the answer of each thread."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.limiter = RateLimiter(clock)
        self.pages = threading.local()

    def wait_after(self, status: int, headers: Any) -> float:
        """Return the seconds to wait after a response: 0 except after a 429. Later requests wait too."""
        if status != 429:
            return 0.0
        wait = _MAX_RATE_LIMIT_WAIT
        try:
            reset = datetime.fromtimestamp(int(headers["X-RateLimit-Reset"]), UTC)
            # Relative to the broker clock if the response has a date: the host may be wrong.
            wait = (reset - (_response_date(headers) or self.clock.now())).total_seconds() + 1.0
        except (KeyError, TypeError, ValueError, OverflowError, OSError):  # the response states no reset
            if str(headers.get("Retry-After", "")).isdecimal():
                wait = float(headers["Retry-After"])
        wait = min(max(wait, 1.0), _MAX_RATE_LIMIT_WAIT)
        self.limiter.hold(wait)
        return wait


class ErrorResponse(Exception):
    """Response with status 400 or more. wait: seconds to wait after a 429.

    body: its JSON object, {} if none. from_broker: it has one, so no proxy on the way wrote it.
    """

    def __init__(self, status: int, text: str, wait: float) -> None:
        super().__init__(status)
        self.status = status
        self.wait = wait
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            body = None
        self.from_broker = isinstance(body, dict)
        self.body: dict[str, Any] = body if isinstance(body, dict) else {}
        self.message = str(self.body.get("message") or " ".join(text.split())[:_MAX_TEXT_SHOWN] or "no reason given")


def bounded_session(context: RequestContext, base: str, methods: tuple[str, ...]) -> Session:
    """A requests session restricted to one base URL and some methods, with rate limit and time limits.

    Raises AddressNotAllowed for any other request, before it is sent, and ErrorResponse for status 400 and above.
    """
    import requests

    session = requests.Session()
    session.trust_env = False  # no proxies and no .netrc from the environment
    session.max_redirects = 0
    adapter = _bounded_adapter(context, base, methods)
    for prefix in list(session.adapters):
        del session.adapters[prefix]
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _bounded_adapter(context: RequestContext, base: str, methods: tuple[str, ...]) -> Any:
    from requests import ConnectionError as NoResponse
    from requests import RequestException, Response
    from requests.adapters import HTTPAdapter

    class BoundedAdapter(HTTPAdapter):
        """Checks and bounds every request. Its headers already contain the keys: a forbidden one is refused unsent."""

        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options)
            watch_connections(self.poolmanager)

        def send(self, request: Any, *_: Any, **options: Any) -> Response:
            if request.method not in methods or not within(request.url or "", base):
                raise AddressNotAllowed(
                    f"{request.method} {request.url} is not allowed; this session sends only {'/'.join(methods)} {base}"
                )
            context.pages.count = getattr(context.pages, "count", 0) + 1
            if request.method == "GET" and context.pages.count > MAX_PAGES:
                raise NoResponse(f"the answer has more than {MAX_PAGES} pages")
            urgent = request.method == "DELETE"
            max_wait = MAX_SUBMIT_WAIT if request.method == "POST" else None
            with context.limiter.request(urgent=urgent, max_wait=max_wait):
                durations = (CONNECT, CONNECT + ANSWER)
                connect, limit = (max(context.clock.real_seconds(s), _MIN_TIMEOUT) for s in durations)
                options.update(timeout=(connect, limit), stream=True, proxies={})
                with RequestDeadline(limit) as deadline:
                    try:
                        response = super().send(request, **options)
                        _read_body(response, NoResponse)
                    except (RequestException, OSError):
                        if not deadline.expired:
                            raise
                    if deadline.expired:  # headers and body may look complete, but were cut off
                        raise NoResponse(_LATE)
            status = response.status_code
            wait = context.wait_after(status, response.headers)
            if 300 <= status < 400:
                raise NoResponse(f"the broker sent a redirect ({status}); redirects are not followed")
            if status >= 400:
                raise ErrorResponse(status, response.text, wait)
            return response

    # No retries, as by default: a POST without a response may have been carried out.
    return BoundedAdapter(max_retries=0)


def _read_body(response: Any, error: type[Exception]) -> None:
    """Read the whole body within the limit of size, while the deadline of the request runs."""
    chunks = []
    size = 0
    for chunk in response.iter_content(_CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > _MAX_RESPONSE_BYTES:
            response.close()
            raise error(f"the response is longer than {_MAX_RESPONSE_BYTES:,} bytes")
    response._content = b"".join(chunks)
    response._content_consumed = True


def _response_date(headers: Any) -> datetime | None:
    try:
        return parsedate_to_datetime(headers["Date"])
    except (KeyError, TypeError, ValueError):
        return None
