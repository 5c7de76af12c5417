"""The way of every request: checked against the allow-list, limited, bounded in time, never redirected or proxied."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from finrl_pod.errors import AddressNotAllowed
from finrl_pod.paper.brokers.alpaca.addresses import within
from finrl_pod.paper.brokers.alpaca.limiter import RequestLimiter
from finrl_pod.paper.brokers.port import Clock
from finrl_pod.paper.records import RateLimit

if TYPE_CHECKING:
    from requests import Session

CONNECT, ANSWER = 5.0, 15.0  # the clock's seconds
SUBMIT_PATIENCE = 2.0  # the clock's seconds that an order waits for room before its sender is told to come back
_LARGEST = 64 * 1024 * 1024  # bytes of an answer
_PIECE = 64 * 1024
_SHOWN = 200  # characters of an answer that is no JSON
_SHORTEST = 0.2  # real seconds: a socket needs that however fast a scaled clock runs
_LONGEST_HOLD = 90.0  # seconds: a limit of requests a minute never needs more


class Line:
    """What the requests to one broker share: clock, limiter, and what the broker last said of its limit."""

    def __init__(self, clock: Clock, limiter: RequestLimiter | None = None) -> None:
        self.clock = clock
        self.limiter = limiter or RequestLimiter(clock)
        self._lock = threading.Lock()
        self._rate: RateLimit | None = None

    @property
    def rate(self) -> RateLimit | None:
        return self._rate

    def heard(self, status: int, headers: Any) -> float:
        """Take in an answer's headers; returns the seconds that a 429 asks us to wait, else 0."""
        reset: datetime | None = None
        try:
            limit, remaining = int(headers["X-RateLimit-Limit"]), int(headers["X-RateLimit-Remaining"])
            reset = datetime.fromtimestamp(int(headers["X-RateLimit-Reset"]), UTC)
            with self._lock:
                self._rate = RateLimit(limit, remaining, reset)
        except (KeyError, ValueError, OverflowError, OSError):
            pass  # an answer that says nothing of the limit
        if status != 429:
            return 0.0
        wait = _LONGEST_HOLD
        if reset is not None:
            # By the broker's own clock where it tells the time: ours may be wrong.
            wait = (reset - (_date(headers) or self.clock.now())).total_seconds() + 1.0
        elif str(headers.get("Retry-After", "")).isdecimal():
            wait = float(headers["Retry-After"])
        wait = min(max(wait, 1.0), _LONGEST_HOLD)
        self.limiter.hold(wait)
        return wait


class Answered(Exception):
    """An answer of 400 or more. body: its JSON, {} where it has none. wait: seconds that a 429 asks for."""

    def __init__(self, status: int, text: str, wait: float) -> None:
        super().__init__(status)
        self.status = status
        self.wait = wait
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        self.body: dict[str, Any] = body if isinstance(body, dict) else {}
        self.message = str(self.body.get("message") or " ".join(text.split())[:_SHOWN] or "no reason given")


def bounded_session(line: Line, base: str, methods: tuple[str, ...]) -> Session:
    """A requests session that reaches one base with some methods, and nothing else at all."""
    import requests

    session = requests.Session()
    session.trust_env = False  # no proxies and no .netrc out of the environment
    session.max_redirects = 0
    adapter = _bounded_adapter(line, base, methods)
    for prefix in list(session.adapters):
        del session.adapters[prefix]
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _bounded_adapter(line: Line, base: str, methods: tuple[str, ...]) -> Any:
    from requests import ConnectionError as NoConnection
    from requests import Response
    from requests.adapters import HTTPAdapter

    class Bounded(HTTPAdapter):
        """Keys are in the request's headers already: what is not allowed is refused here, before anything is sent."""

        def send(self, request: Any, *_: Any, **options: Any) -> Response:
            if request.method not in methods or not within(request.url or "", base):
                raise AddressNotAllowed(
                    f"{request.method} {request.url} was tried, only {'/'.join(methods)} {base} is allowed"
                )
            urgent = request.method == "DELETE"
            patience = SUBMIT_PATIENCE if request.method in ("POST", "PATCH") else None
            with line.limiter.request(urgent=urgent, patience=patience):
                connect, answer = (max(line.clock.real_seconds(s), _SHORTEST) for s in (CONNECT, ANSWER))
                end = time.monotonic() + answer
                options.update(timeout=(connect, answer), stream=True, proxies={})
                response = super().send(request, **options)
                _read(response, lambda: time.monotonic() > end, NoConnection)
            status = response.status_code
            wait = line.heard(status, response.headers)
            if 300 <= status < 400:
                raise NoConnection(f"the broker answered with a redirect ({status}), which is not followed")
            if status >= 400:
                raise Answered(status, response.text, wait)
            return response

    # The default of no retries, said aloud: a POST that got no answer may have been carried out.
    return Bounded(max_retries=0)


def _read(response: Any, late: Callable[[], bool], error: type[Exception]) -> None:
    """The whole body now, so that its time is bounded too and not only that of each piece."""
    pieces, size = [], 0
    for piece in response.iter_content(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > _LARGEST or late():
            response.close()
            raise error("the broker's answer did not end")
    response._content = b"".join(pieces)
    response._content_consumed = True


def _date(headers: Any) -> datetime | None:
    try:
        return parsedate_to_datetime(headers["Date"])
    except (KeyError, TypeError, ValueError):
        return None
