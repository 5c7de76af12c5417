"""Trade-updates stream: its connections, the messages they receive, and stream faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import WSMessage, WSMsgType, web

from finrl_pod.fake_alpaca.faults import Faults
from finrl_pod.fake_alpaca.routes import Authoriser, TrafficLog

_PING_SECONDS = 5.0  # real
_CONNECTION_LIMIT_ERROR = [{"T": "error", "code": 406, "msg": "connection limit exceeded"}]


class TradeUpdateHub:
    """Sends trade updates to all connections that listen, in the order of the events unless a fault changes it."""

    def __init__(
        self, faults: Faults, log: TrafficLog, seconds: Callable[[], float], is_authorised: Authoriser
    ) -> None:
        self._faults = faults
        self._log = log
        self._seconds = seconds
        self._is_authorised = is_authorised
        self._listening: list[_Connection] = []
        self._silent_until = 0.0

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send a trade update to all listening connections."""
        fault = self._faults.for_message(str(event["event"]), event["order"])
        kind = "" if fault is None else fault.kind
        seconds = 0.0 if fault is None else fault.seconds
        now = asyncio.get_running_loop().time()
        if kind:
            self._log_event("fault", fault=kind, event=event["event"], order=event["order"]["client_order_id"])
        if kind == "silence":
            self._silent_until = now + seconds
        if now < self._silent_until or kind == "lose":
            return
        message = {"stream": "trade_updates", "data": event}
        for connection in self._listening:
            if kind == "disconnect":
                connection.disconnect()
            elif kind == "hold":
                connection.hold(message, seconds)
            else:
                connection.send(message, copies=2 if kind == "duplicate" else 1)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """GET /stream: authenticate, listen, then send updates until one side disconnects."""
        socket = web.WebSocketResponse(heartbeat=_PING_SECONDS)
        await socket.prepare(request)
        if self._faults.for_connection() is not None:
            self._log_event("refused")
            await socket.send_bytes(json.dumps(_CONNECTION_LIMIT_ERROR).encode())
            await socket.close()
            return socket
        connection = _Connection(socket, request)
        self._log_event("connected")
        writer = asyncio.create_task(connection.write())
        try:
            async for message in socket:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    self._handle_message(connection, message)
        finally:
            if connection in self._listening:
                self._listening.remove(connection)
            writer.cancel()
            self._log_event("disconnected")
        return socket

    def end_silence(self) -> None:
        """End a "silence" fault before its time."""
        self._silent_until = 0.0

    async def close(self) -> None:
        """Close all listening connections."""
        for connection in list(self._listening):
            await connection.socket.close()

    def _handle_message(self, connection: _Connection, message: WSMessage) -> None:
        try:
            command = json.loads(message.data)
            action = command["action"]
            data = command.get("data", {})
        except (ValueError, TypeError, KeyError):
            return
        if action in ("authenticate", "auth"):
            key = data.get("key_id") or command.get("key")
            secret = data.get("secret_key") or command.get("secret")
            connection.is_authorised = self._is_authorised(str(key or ""), str(secret or ""))
            status = "authorized" if connection.is_authorised else "unauthorized"
            connection.send({"stream": "authorization", "data": {"status": status, "action": "authenticate"}})
        elif action == "listen":
            streams = [s for s in data.get("streams", []) if s == "trade_updates"] if connection.is_authorised else []
            if streams and connection not in self._listening:
                self._listening.append(connection)
                self._log_event("listening")
            elif not streams and connection in self._listening:
                self._listening.remove(connection)
            connection.send({"stream": "listening", "data": {"streams": streams}})

    def _log_event(self, what: str, **detail: Any) -> None:
        self._log.write("stream", self._seconds(), what=what, **detail)


class _Connection:
    """One websocket connection. Its own queue keeps a slow reader from delaying the others."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self.socket = socket
        self.is_authorised = False
        self._request = request
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._held_messages: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any], copies: int = 1) -> None:
        """Queue a message, followed by those that were held back."""
        for _ in range(copies):
            self._queue.put_nowait(message)
        self._release()

    def hold(self, message: dict[str, Any], seconds: float) -> None:
        """Send a message after the next one, or after `seconds`."""
        self._held_messages.append(message)
        asyncio.get_running_loop().call_later(seconds, self._release)

    def disconnect(self) -> None:
        """Abort the connection without a closing handshake."""
        if self._request.transport is not None:
            self._request.transport.abort()

    def _release(self) -> None:
        for message in self._held_messages:
            self._queue.put_nowait(message)
        self._held_messages = []

    async def write(self) -> None:
        """Send queued messages as binary frames, like the Alpaca paper stream."""
        while True:
            message = await self._queue.get()
            try:
                await self.socket.send_bytes(json.dumps(message).encode())
            except ConnectionError:
                return
