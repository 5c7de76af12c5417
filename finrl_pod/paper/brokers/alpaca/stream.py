"""Client of the trade-updates stream: one connection, kept open by a thread that reconnects with growing pauses.

Updates are hints only: orders and fills are read over REST. `state` reports the health of the connection.
"""

from __future__ import annotations

import json
import random
import threading
from collections import deque
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from finrl_pod.paper.brokers.alpaca import responses
from finrl_pod.paper.brokers.alpaca.credentials import Keys, stream_address
from finrl_pod.paper.brokers.alpaca.responses import UnreadableResponse
from finrl_pod.paper.domain.port import Clock
from finrl_pod.paper.domain.records import OrderUpdate, StreamState

# In seconds of the clock:
FIRST_PAUSE = 1.0  # between two attempts to connect
MAX_PAUSE = 60.0
REFUSED_PAUSE = 30.0  # first pause after the broker refused the connection
_OPEN_TIMEOUT = 10.0

_MIN_OPEN_TIMEOUT = 2.0  # real seconds
_POLL_SECONDS = 0.1  # real seconds between two checks whether to stop
_CLOSE_TIMEOUT = 5.0  # real seconds to wait for the thread
_MAX_UPDATES = 100_000  # updates kept until they are fetched
_MAX_MESSAGE_BYTES = 1 << 20
_MAX_DOUBLINGS = 10


class StreamRefused(Exception):
    """The broker refused the stream connection or keys."""


class NoStream:
    """Placeholder for a client library without a usable stream: updates are polled over REST."""

    def updates(self) -> tuple[OrderUpdate, ...]:
        return ()

    def state(self) -> StreamState:
        return StreamState(connected=False, detail="this client has no stream", offered=False)

    def reconnect(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class UpdateStream:
    """Receives trade updates from `start` until `close`. base: trading address. seed: seed of the jitter of pauses."""

    def __init__(self, base: str, keys: Keys, clock: Clock, seed: int = 0) -> None:
        self._url = stream_address(base)
        self._keys = keys
        self._clock = clock
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._updates: deque[OrderUpdate] = deque(maxlen=_MAX_UPDATES)
        self._connected = False
        self._last: datetime | None = None
        self._last_update: datetime | None = None
        self._refusals = 0
        self._detail = "not started"
        self._stop = threading.Event()
        self._reconnect = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trade-updates", daemon=True)

    def start(self) -> UpdateStream:
        """Start the thread; returns the stream itself."""
        self._thread.start()
        return self

    def updates(self) -> tuple[OrderUpdate, ...]:
        """Updates since the last call."""
        with self._lock:
            new_updates = tuple(self._updates)
            self._updates.clear()
        return new_updates

    def state(self) -> StreamState:
        """Health of the connection."""
        with self._lock:
            return StreamState(self._connected, self._last, self._refusals, self._detail, last_update=self._last_update)

    def reconnect(self) -> None:
        """Drop the connection and open another one; returns immediately."""
        self._reconnect.set()

    def close(self) -> None:
        """Close the connection and wait a few seconds for the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_CLOSE_TIMEOUT)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                with self._connection() as socket:
                    self._subscribe(socket)
                    failures = 0
                    self._receive(socket)
            except StreamRefused as error:
                failures += 1
                self._set_status(str(error), refused=True)
            except Exception as error:  # noqa: BLE001 - whatever a frame causes must not end the thread
                failures += 1
                self._set_status(f"{type(error).__name__}: {error}")
            if not self._stop.is_set():
                self._pause(failures)

    def _connection(self) -> AbstractContextManager[Any]:
        from websockets.sync.client import connect

        # No proxy from the environment; the address is checked. websockets refuses redirects.
        timeout = self._open_timeout()
        socket: AbstractContextManager[Any] = connect(
            self._url, proxy=None, open_timeout=timeout, close_timeout=1.0, max_size=_MAX_MESSAGE_BYTES
        )
        return socket

    def _subscribe(self, socket: Any) -> None:
        """Authenticate and subscribe. Raises StreamRefused, also if the broker closes the connection meanwhile."""
        from websockets.exceptions import ConnectionClosed

        keys = {"key_id": self._keys.key, "secret_key": self._keys.secret}
        try:
            socket.send(json.dumps({"action": "authenticate", "data": keys}))
            self._expect(socket, "authorization", "status", "authorized")
            socket.send(json.dumps({"action": "listen", "data": {"streams": ["trade_updates"]}}))
            self._expect(socket, "listening", "streams", ["trade_updates"])
        except ConnectionClosed as closed:
            raise StreamRefused(f"the stream was closed before it began ({closed})") from None
        with self._lock:
            self._connected = True
            self._refusals = 0
            self._detail = "listening"
            self._last = self._clock.now()

    def _open_timeout(self) -> float:
        return max(self._clock.real_seconds(_OPEN_TIMEOUT), _MIN_OPEN_TIMEOUT)

    def _expect(self, socket: Any, stream: str, name: str, value: Any) -> None:
        message = json.loads(socket.recv(timeout=self._open_timeout()))
        if isinstance(message, list):
            message = message[0] if message else {}
        data = message.get("data") if isinstance(message, dict) and message.get("stream") == stream else None
        if not isinstance(data, dict) or data.get(name) != value:
            code = message.get("code") if isinstance(message, dict) else None
            raise StreamRefused(f"the stream was refused ({code or stream})")

    def _receive(self, socket: Any) -> None:
        self._reconnect.clear()
        while not self._stop.is_set():
            if self._reconnect.is_set():
                self._set_status("reconnecting on request")
                return
            try:
                text = socket.recv(timeout=_POLL_SECONDS)
            except TimeoutError:
                continue
            self._store(json.loads(text))

    def _store(self, message: Any) -> None:
        if not isinstance(message, dict) or message.get("stream") != "trade_updates":
            return
        try:
            update = responses.order_update(message.get("data") or {})
        except (UnreadableResponse, AttributeError) as error:
            # A message that this version cannot parse: the state is read over REST.
            self._set_status(f"unreadable message: {error}", connected=True)
            return
        with self._lock:
            self._last = self._last_update = self._clock.now()
            self._updates.append(update)

    def _set_status(self, detail: str, *, refused: bool = False, connected: bool = False) -> None:
        with self._lock:
            self._connected = connected
            self._refusals += refused
            self._detail = self._keys.mask(detail)

    def _pause(self, failures: int) -> None:
        """Exponential back-off with jitter; longer if the broker refused the connection."""
        with self._lock:
            first = REFUSED_PAUSE if self._refusals else FIRST_PAUSE
        longest = min(first * 2.0 ** min(max(failures - 1, 0), _MAX_DOUBLINGS), max(MAX_PAUSE, first * 4))
        self._stop.wait(self._clock.real_seconds(longest * self._random.uniform(0.5, 1.0)))
