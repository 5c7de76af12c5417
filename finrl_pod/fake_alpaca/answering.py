"""What surrounds every request: keys, the limit of requests, faults, headers, and the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.faults import Fault, Faults
from finrl_pod.fake_alpaca.orders import Refusal
from finrl_pod.fake_alpaca.pacing import Pacer
from finrl_pod.fake_alpaca.routes import Asked, Handler
from finrl_pod.fake_alpaca.scaled_clock import ScaledClock
from finrl_pod.fake_alpaca.traffic import RequestCount, TrafficLog

Authorised = Callable[[str, str], bool]


class Answering:
    """Makes handlers of requests out of those of routes. acted: called after whatever may have changed the exchange."""

    def __init__(
        self, exchange: Exchange, clock: ScaledClock, pacer: Pacer, faults: Faults, log: TrafficLog,
        authorised: Authorised, acted: Callable[[], None],
    ) -> None:  # fmt: skip
        self._exchange = exchange
        self._clock = clock
        self._pacer = pacer
        self._faults = faults
        self._log = log
        self._authorised = authorised
        self._acted = acted

    def answering(self, handler: Handler, count: RequestCount) -> Callable[[web.Request], Any]:
        """A handler with everything around it: keys, limit, faults, headers, log."""

        async def answer(request: web.Request) -> web.StreamResponse:
            self._pacer.request()
            arrived = self._clock.seconds()
            number = len(self._log.records)
            body = _json(await request.read())
            fault: Fault | None = None
            taken = False
            if not self._authorised(*(request.headers.get(h, "") for h in ("APCA-API-KEY-ID", "APCA-API-SECRET-KEY"))):
                status, answered = 401, {"message": "unauthorized."}
            elif not (taken := count.take(arrived)):
                status, answered = 429, {"message": "rate limit exceeded"}
            else:
                fault = self._faults.request(request.method, request.path, body if isinstance(body, Mapping) else {})
                status, answered = await self._act(request, handler, body, fault)
            self._log.write(
                "request",
                self._clock.seconds(),
                arrived=arrived,
                after=number,
                method=request.method,
                path=request.path,
                query=dict(request.query),
                body=body,
                status=status,
                answer=answered if request.method != "GET" or status >= 400 else None,
                counted=taken,
                fault=None if fault is None else fault.kind,
            )
            return await self._respond(request, status, answered, count, fault)

        return answer

    async def _act(self, request: web.Request, handler: Handler, body: Any, fault: Fault | None) -> tuple[int, Any]:
        """Do what was asked, unless the fault comes first: then the answer is the fault's."""
        if fault is not None and fault.kind in ("answer", "drop", "hang"):
            return fault.status, fault.body
        if fault is not None and fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
        moment = self._clock.seconds()
        self._exchange.advance(moment)
        try:
            result = handler(Asked(request.match_info, request.query, body, self._exchange.now))
        except Refusal as refusal:
            result = refusal.status, refusal.body
        self._acted()
        return result

    async def _respond(
        self, request: web.Request, status: int, answered: Any, count: RequestCount, fault: Fault | None
    ) -> web.StreamResponse:
        kind = "" if fault is None else fault.kind
        headers = count.headers(self._clock.seconds())
        if fault is not None:
            if kind in ("hang", "hang_after"):
                await _hold(request, fault.seconds)
            if kind in ("hang", "hang_after", "drop", "drop_after"):
                if request.transport is not None:
                    request.transport.abort()
                return web.Response(status=500)
            if kind == "delay_after":
                await asyncio.sleep(fault.seconds)
            if kind == "answer_after":
                status, answered = fault.status, fault.body
            if kind == "edit" and status < 400:
                answered = _edited(answered, fault.body)
            headers |= fault.headers
        if status == 204:
            return web.Response(status=status, headers=headers)
        text = answered if isinstance(answered, str) else json.dumps(answered)
        headers.setdefault("Content-Type", "application/json; charset=UTF-8")
        return web.Response(status=status, text=text, headers=headers)


def unknown(_: Asked) -> tuple[int, Any]:
    """Every other address."""
    raise Refusal(404, 40410000, "endpoint not found")


async def _hold(request: web.Request, seconds: float) -> None:
    """Wait, but not longer than the client does."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end and request.transport is not None:
        await asyncio.sleep(0.01)


def _edited(answer: Any, changes: Mapping[str, Any]) -> Any:
    if isinstance(answer, list):
        return [_edited(entry, changes) for entry in answer]
    if not isinstance(answer, Mapping):
        return answer
    merged = {**answer, **changes}
    return {k: v for k, v in merged.items() if not (k in changes and changes[k] is None)}


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return None
