"""Market data stream of minute bars: each is sent when its minute is over, to the connections that subscribed to it.

Speaks the protocol of Alpaca's `/v2/iex` and `/v2/sip`, in JSON or, for a client that asks for it, in MessagePack.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from typing import Any

from aiohttp import WSMsgType, web

from finrl_pod.fake_alpaca.minute_bars import minute_bar
from finrl_pod.fake_alpaca.prices import Prices

MINUTE = 60.0
_CHANNELS = ("trades", "quotes", "bars", "updatedBars", "dailyBars", "statuses", "lulds", "corrections", "cancelErrors")
_MESSAGEPACK = "application/msgpack"

Schedule = Callable[[float, Callable[[], None]], None]  # simulated time, action


class BarHub:
    """Sends minute bars. Use it from the server thread.

    seconds: simulated time. schedule: calls an action at a simulated time. Minutes are scheduled only while somebody
    is subscribed.
    """

    def __init__(
        self,
        prices: Prices,
        seconds: Callable[[], float],
        schedule: Schedule,
        is_authorised: Callable[[str, str], bool],
    ) -> None:
        self._prices = prices
        self._seconds = seconds
        self._schedule = schedule
        self._is_authorised = is_authorised
        self._subscribers: dict[web.WebSocketResponse, _Subscriber] = {}
        self._scheduled = False

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """GET /v2/{iex|sip}: authenticate, subscribe to bars, then receive them until one side disconnects."""
        socket = web.WebSocketResponse(heartbeat=5.0)
        await socket.prepare(request)
        subscriber = _Subscriber(socket, packed=request.headers.get("Content-Type") == _MESSAGEPACK)
        await subscriber.send([{"T": "success", "msg": "connected"}])
        try:
            async for message in socket:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    await self._handle(subscriber, message.data)
        finally:
            self._subscribers.pop(socket, None)
        return socket

    async def close(self) -> None:
        """Close all subscribed connections."""
        for socket in list(self._subscribers):
            await socket.close()

    async def _handle(self, subscriber: _Subscriber, data: str | bytes) -> None:
        try:
            command = subscriber.unpack(data)
            action = command["action"]
        except (ValueError, TypeError, KeyError):
            return await subscriber.send([{"T": "error", "code": 400, "msg": "invalid syntax"}])
        if action == "auth":
            subscriber.authorised = self._is_authorised(str(command.get("key") or ""), str(command.get("secret") or ""))
            failed = {"T": "error", "code": 402, "msg": "auth failed"}
            return await subscriber.send(
                [{"T": "success", "msg": "authenticated"} if subscriber.authorised else failed]
            )
        if not subscriber.authorised:
            return await subscriber.send([{"T": "error", "code": 401, "msg": "not authenticated"}])
        symbols = {str(symbol) for symbol in command.get("bars") or ()}
        if action == "subscribe":
            subscriber.symbols |= symbols
        elif action == "unsubscribe":
            subscriber.symbols -= symbols
        self._subscribers[subscriber.socket] = subscriber
        subscribed: dict[str, Any] = {channel: [] for channel in _CHANNELS}
        await subscriber.send([{"T": "subscription", **subscribed, "bars": sorted(subscriber.symbols)}])
        self._schedule_next()

    def _schedule_next(self) -> None:
        if not self._scheduled and any(s.symbols for s in self._subscribers.values()):
            self._scheduled = True
            self._schedule((self._seconds() // MINUTE + 1) * MINUTE, self._publish)

    def _publish(self) -> None:
        """Send the bars of the minute that has just ended."""
        self._scheduled = False
        start = (self._seconds() // MINUTE - 1) * MINUTE
        session = self._prices.sessions.current(start)
        if session is not None:
            wanted = {s for each in self._subscribers.values() for s in each.symbols}
            known = (s for s in sorted(wanted) if self._prices.has_symbol(s))
            bars = {s: minute_bar(self._prices, s, session, start, 1) for s in known}
            for subscriber in self._subscribers.values():
                own = [{"T": "b", "S": s, **bar} for s, bar in bars.items() if bar and s in subscriber.symbols]
                if own:
                    subscriber.send_soon(own, start)
        self._schedule_next()


class _Subscriber:
    """One connection. packed: messages are MessagePack."""

    def __init__(self, socket: web.WebSocketResponse, *, packed: bool) -> None:
        self.socket = socket
        self.authorised = False
        self.symbols: set[str] = set()
        self._packed = packed

    def unpack(self, data: str | bytes) -> dict[str, Any]:
        """The command in a message. Raises ValueError or TypeError for anything else."""
        if not self._packed:
            return dict(json.loads(data))
        msgpack: Any = importlib.import_module("msgpack")  # comes with the client library of Alpaca
        return dict(msgpack.unpackb(data))

    async def send(self, messages: list[dict[str, Any]]) -> None:
        await self._send(self._pack(messages))

    def send_soon(self, bars: list[dict[str, Any]], start: float) -> None:
        """Send bars that started at a time, from outside of a coroutine."""
        content = self._pack(bars, start)
        asyncio.get_running_loop().create_task(self._send(content))

    def _pack(self, messages: list[dict[str, Any]], start: float | None = None) -> str | bytes:
        if not self._packed:
            return json.dumps(messages)
        msgpack: Any = importlib.import_module("msgpack")  # comes with the client library of Alpaca
        if start is not None:  # times are not text in this format
            messages = [{**message, "t": msgpack.Timestamp.from_unix(start)} for message in messages]
        packed: bytes = msgpack.packb(messages)
        return packed

    async def _send(self, content: str | bytes) -> None:
        try:
            if isinstance(content, str):
                await self.socket.send_str(content)
            else:
                await self.socket.send_bytes(content)
        except ConnectionError:
            return
