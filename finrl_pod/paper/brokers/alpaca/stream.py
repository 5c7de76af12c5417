"""The trade-updates stream: one connection, kept by a thread that comes back after every loss, ever more patiently.

What arrives is a hint. Whether the stream is alive can be seen from `state`; orders and fills are asked for over REST.
"""

from __future__ import annotations

import json
import random
import threading
from collections import deque
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from finrl_pod.paper.brokers.alpaca import reading
from finrl_pod.paper.brokers.alpaca.addresses import stream_address
from finrl_pod.paper.brokers.alpaca.keys import Keys
from finrl_pod.paper.brokers.alpaca.reading import Unreadable
from finrl_pod.paper.brokers.port import Clock
from finrl_pod.paper.records import OrderUpdate, StreamState

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # the clock's seconds between two attempts
REFUSED_PAUSE = 30.0  # after a refusal because of a connection that is still open
_LOOK = 0.1  # real seconds between two looks whether to stop
_OPENING = 10.0  # the clock's seconds
_KEPT = 100_000  # updates that nobody fetched
_LARGEST = 1 << 20  # bytes of a message


class Refused(Exception):
    """The stream did not take the connection or the keys."""


class NoStream:
    """For a client library without a stream of use: everything is asked for over REST."""

    def updates(self) -> tuple[OrderUpdate, ...]:
        return ()

    def state(self) -> StreamState:
        return StreamState(connected=False, detail="this client has no stream", offered=False)

    def renew(self) -> None:
        """Nothing to make anew."""

    def close(self) -> None:
        """Nothing is open."""


class UpdateStream:
    """Listens from `start` on, until `close`. base: a trading address. seed: of the jitter in the pauses."""

    def __init__(self, base: str, keys: Keys, clock: Clock, seed: int = 0) -> None:
        self._url = stream_address(base)
        self._keys = keys
        self._clock = clock
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._updates: deque[OrderUpdate] = deque(maxlen=_KEPT)
        self._connected = False
        self._last: datetime | None = None
        self._refusals = 0
        self._detail = "not started"
        self._stop = threading.Event()
        self._anew = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trade-updates", daemon=True)

    def start(self) -> UpdateStream:
        self._thread.start()
        return self

    def updates(self) -> tuple[OrderUpdate, ...]:
        """What came since the last call."""
        with self._lock:
            found = tuple(self._updates)
            self._updates.clear()
        return found

    def state(self) -> StreamState:
        with self._lock:
            return StreamState(self._connected, self._last, self._refusals, self._detail)

    def renew(self) -> None:
        """Leave the connection and make another one; returns at once."""
        self._anew.set()

    def close(self) -> None:
        """Leave the connection; waits for the thread, but not for long."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        from websockets.exceptions import WebSocketException

        lost = 0
        while not self._stop.is_set():
            try:
                with self._connection() as socket:
                    self._listen(socket)
                    lost = 0
                    self._hear(socket)
            except Refused as error:
                lost += 1
                self._note(str(error), refused=True)
            except (OSError, WebSocketException, ValueError, EOFError) as error:
                lost += 1
                self._note(f"{type(error).__name__}: {error}", refused=False)
            if not self._stop.is_set():
                self._pause(lost)

    def _connection(self) -> AbstractContextManager[Any]:
        from websockets.sync.client import connect

        # No proxy out of the environment; the address was checked. A redirect is refused by the library.
        wait = max(self._clock.real_seconds(_OPENING), 1.0)
        socket: AbstractContextManager[Any] = connect(
            self._url, proxy=None, open_timeout=wait, close_timeout=1.0, max_size=_LARGEST
        )
        return socket

    def _listen(self, socket: Any) -> None:
        """Raises Refused, also when the broker closes the connection instead of answering."""
        from websockets.exceptions import ConnectionClosed

        try:
            self._introduce(socket)
        except ConnectionClosed as closed:
            raise Refused(f"the stream was closed before it began ({_last_word(socket) or closed})") from None
        with self._lock:
            self._connected, self._refusals, self._detail = True, 0, "listening"
            self._last = self._clock.now()

    def _introduce(self, socket: Any) -> None:
        keys = {"key_id": self._keys.key, "secret_key": self._keys.secret}
        socket.send(json.dumps({"action": "authenticate", "data": keys}))
        self._expect(socket, "authorization", "status", "authorized")
        socket.send(json.dumps({"action": "listen", "data": {"streams": ["trade_updates"]}}))
        self._expect(socket, "listening", "streams", ["trade_updates"])

    def _expect(self, socket: Any, stream: str, name: str, value: Any) -> None:
        message = json.loads(socket.recv(timeout=max(self._clock.real_seconds(_OPENING), 1.0)))
        if isinstance(message, list):
            message = message[0] if message else {}
        if not isinstance(message, dict) or message.get("stream") != stream or message["data"].get(name) != value:
            code = message.get("code") if isinstance(message, dict) else None
            raise Refused(f"the stream was refused ({code or stream})")

    def _hear(self, socket: Any) -> None:
        self._anew.clear()
        while not self._stop.is_set():
            if self._anew.is_set():
                self._note("left for another connection", refused=False)
                return
            try:
                text = socket.recv(timeout=_LOOK)
            except TimeoutError:
                continue
            self._take(json.loads(text))

    def _take(self, message: Any) -> None:
        if not isinstance(message, dict) or message.get("stream") != "trade_updates":
            return
        try:
            update = reading.update(message.get("data") or {})
        except (Unreadable, AttributeError) as error:
            # Something is going on that this version cannot read: REST will tell.
            self._note(f"a message cannot be read: {error}", refused=False, connected=True)
            return
        with self._lock:
            self._last = self._clock.now()
            self._updates.append(update)

    def _note(self, detail: str, *, refused: bool, connected: bool = False) -> None:
        with self._lock:
            self._connected = connected
            self._refusals += refused
            self._detail = self._keys.strike(detail)

    def _pause(self, lost: int) -> None:
        """Twice as long after each loss, with jitter; longer where the broker refused the connection."""
        with self._lock:
            first = REFUSED_PAUSE if self._refusals else FIRST_PAUSE
        longest = min(first * 2.0 ** min(max(lost - 1, 0), 10), max(LONGEST_PAUSE, first * 4))
        self._stop.wait(self._clock.real_seconds(longest * self._random.uniform(0.5, 1.0)))


def _last_word(socket: Any) -> str:
    """The code of an error that arrived before the connection was closed, "" for none."""
    from websockets.exceptions import ConnectionClosed

    try:
        message = json.loads(socket.recv(timeout=0))
    except (ConnectionClosed, TimeoutError, ValueError):
        return ""
    first = message[0] if isinstance(message, list) and message else message
    return str(first.get("code", "")) if isinstance(first, dict) else ""
