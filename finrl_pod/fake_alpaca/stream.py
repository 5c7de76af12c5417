"""The trade-updates stream: who is connected, what they are sent, and the faults that get in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import WSMessage, WSMsgType, web

from finrl_pod.fake_alpaca.faults import Faults
from finrl_pod.fake_alpaca.traffic import TrafficLog

_PING = 5.0  # real seconds
_TOO_MANY = [{"T": "error", "code": 406, "msg": "connection limit exceeded"}]

Authorised = Callable[[str, str], bool]


class Hub:
    """Every listener of trade updates; messages leave in the order in which things happened, faults aside."""

    def __init__(self, faults: Faults, log: TrafficLog, seconds: Callable[[], float], authorised: Authorised) -> None:
        self._faults = faults
        self._log = log
        self._seconds = seconds
        self._authorised = authorised
        self._listeners: list[_Listener] = []
        self._silent_until = 0.0

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send one trade update to everybody who listens."""
        fault = self._faults.message(str(event["event"]), event["order"])
        loop = asyncio.get_running_loop()
        if fault is not None:
            self._note("fault", fault=fault.kind, event=event["event"], order=event["order"]["client_order_id"])
        if fault is not None and fault.kind == "silence":
            self._silent_until = loop.time() + fault.seconds
        if loop.time() < self._silent_until or (fault is not None and fault.kind == "lose"):
            return
        message = {"stream": "trade_updates", "data": event}
        for listener in self._listeners:
            if fault is not None and fault.kind == "disconnect":
                listener.disconnect()
            elif fault is not None and fault.kind == "hold":
                listener.hold(message, fault.seconds)
            else:
                listener.send(message, copies=2 if fault is not None and fault.kind == "duplicate" else 1)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """GET /stream: authenticate, listen, then updates until one side leaves."""
        socket = web.WebSocketResponse(heartbeat=_PING)
        await socket.prepare(request)
        if self._faults.connection() is not None:
            self._note("refused")
            await socket.send_bytes(json.dumps(_TOO_MANY).encode())
            await socket.close()
            return socket
        listener = _Listener(socket, request)
        self._note("connected")
        writer = asyncio.create_task(listener.write())
        try:
            async for message in socket:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    self._hear(listener, message)
        finally:
            if listener in self._listeners:
                self._listeners.remove(listener)
            writer.cancel()
            self._note("disconnected")
        return socket

    def speak(self) -> None:
        """End a silence."""
        self._silent_until = 0.0

    async def close(self) -> None:
        for listener in list(self._listeners):
            await listener.socket.close()

    def _hear(self, listener: _Listener, message: WSMessage) -> None:
        try:
            wish = json.loads(message.data)
            action, data = wish["action"], wish.get("data", {})
        except (ValueError, TypeError, KeyError):
            return
        if action in ("authenticate", "auth"):
            key, secret = data.get("key_id") or wish.get("key"), data.get("secret_key") or wish.get("secret")
            listener.authorised = self._authorised(str(key or ""), str(secret or ""))
            status = "authorized" if listener.authorised else "unauthorized"
            listener.send({"stream": "authorization", "data": {"status": status, "action": "authenticate"}})
        elif action == "listen":
            streams = [s for s in data.get("streams", []) if s == "trade_updates"] if listener.authorised else []
            if streams and listener not in self._listeners:
                self._listeners.append(listener)
                self._note("listening")
            elif not streams and listener in self._listeners:
                self._listeners.remove(listener)
            listener.send({"stream": "listening", "data": {"streams": streams}})

    def _note(self, what: str, **detail: Any) -> None:
        self._log.write("stream", self._seconds(), what=what, **detail)


class _Listener:
    """One connection, with a queue of its own so that a slow reader holds up nobody."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self.socket = socket
        self.authorised = False
        self._request = request
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._held: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any], copies: int = 1) -> None:
        for _ in range(copies):
            self._queue.put_nowait(message)
        self._release()

    def hold(self, message: dict[str, Any], seconds: float) -> None:
        """Keep a message back until another one has been sent, or the time is over."""
        self._held.append(message)
        asyncio.get_running_loop().call_later(seconds, self._release)

    def disconnect(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    def _release(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self._queue.put_nowait(message)

    async def write(self) -> None:
        """Binary frames, as Alpaca's paper stream sends them."""
        while True:
            message = await self._queue.get()
            try:
                await self.socket.send_bytes(json.dumps(message).encode())
            except ConnectionError:
                return
