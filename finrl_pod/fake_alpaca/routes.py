"""Routes of the trading and market data APIs, and the processing of every request around its handler.

Handlers are plain functions of a request. `RequestPipeline` adds authentication, rate limit, faults, headers and log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from aiohttp import web

from finrl_pod.fake_alpaca import trading_api as trading
from finrl_pod.fake_alpaca.account import Order
from finrl_pod.fake_alpaca.data_api import MarketData
from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.faults import Fault, Faults
from finrl_pod.fake_alpaca.scaled_clock import ScaledClock
from finrl_pod.fake_alpaca.wire_format import NOT_FOUND, ApiError, timestamp

WINDOW_SECONDS = 60.0  # of the rate limit
OK = 200
NO_CONTENT = 204
MULTI_STATUS = 207
_DRIP_LENGTH = 100_000  # bytes announced, real seconds between two of them
_DRIP_PAUSE = 0.05
_DISCONNECT_POLL_SECONDS = 0.01

Authoriser = Callable[[str, str], bool]


@dataclass(frozen=True)
class ApiRequest:
    """A request without its transport. names: the variable parts of the path. moment: UTC epoch seconds."""

    names: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    moment: float


ApiResponse = tuple[int, Any]  # (HTTP status, content)
Handler = Callable[[ApiRequest], ApiResponse]


def trading_routes(exchange: Exchange) -> list[tuple[str, str, Handler]]:
    """(method, path, handler) of the trading API."""

    def cancel(request: ApiRequest) -> ApiResponse:
        exchange.cancel(request.names["order_id"], request.moment)
        return NO_CONTENT, None

    def find_by_client_id(request: ApiRequest) -> ApiResponse:
        name = request.query.get("client_order_id", "")
        return OK, exchange.order_json(exchange.find(name, by_client_id=True))

    def close_all(request: ApiRequest) -> ApiResponse:
        if request.query.get("cancel_orders") in ("true", "True"):
            _cancel_orders(exchange, request.moment)
        return MULTI_STATUS, [
            {"symbol": s, **_status_and_body(partial(trading.close_position, exchange, s, {}, request.moment))}
            for s in sorted(exchange.ledger.holdings)
        ]

    def activities(request: ApiRequest) -> ApiResponse:
        return OK, trading.activities(exchange, request.query, request.names.get("kind"))

    def replace(request: ApiRequest) -> ApiResponse:
        return OK, exchange.replace(request.names["order_id"], request.body, request.moment).to_json()

    def close_position(request: ApiRequest) -> ApiResponse:
        order = trading.close_position(exchange, request.names["symbol"], request.query, request.moment)
        return OK, order.to_json()

    return [
        ("GET", "/v2/account", lambda r: (OK, trading.account(exchange, r.moment))),
        ("GET", "/v2/account/configurations", lambda _: (OK, trading.configurations(exchange))),
        ("GET", "/v2/account/activities", activities),
        ("GET", "/v2/account/activities/{kind}", activities),
        ("GET", "/v2/account/portfolio/history", lambda r: (OK, trading.portfolio_history(exchange, r.query))),
        ("GET", "/v2/clock", lambda r: (OK, trading.clock(exchange, r.moment + exchange.conditions.clock_skew))),
        ("GET", "/v2/calendar", lambda r: (OK, trading.calendar(exchange, r.query))),
        ("GET", "/v2/assets", lambda r: (OK, trading.assets(exchange, r.query, r.moment))),
        ("GET", "/v2/assets/{symbol}", lambda r: (OK, trading.asset(exchange, r.names["symbol"], r.moment))),
        ("GET", "/v2/orders", lambda r: (OK, trading.order_list(exchange, r.query))),
        ("POST", "/v2/orders", lambda r: (OK, exchange.order_json(exchange.submit(r.body, r.moment)))),
        ("DELETE", "/v2/orders", lambda r: (MULTI_STATUS, _cancel_orders(exchange, r.moment))),
        ("GET", "/v2/orders:by_client_order_id", find_by_client_id),
        ("GET", "/v2/orders/{order_id}", lambda r: (OK, exchange.order_json(exchange.find(r.names["order_id"])))),
        ("PATCH", "/v2/orders/{order_id}", replace),
        ("DELETE", "/v2/orders/{order_id}", cancel),
        ("GET", "/v2/positions", lambda r: (OK, trading.positions(exchange, r.moment))),
        ("DELETE", "/v2/positions", close_all),
        ("GET", "/v2/positions/{symbol}", lambda r: (OK, trading.position(exchange, r.names["symbol"], r.moment))),
        ("DELETE", "/v2/positions/{symbol}", close_position),
    ]


def data_routes(data: MarketData) -> list[tuple[str, str, Handler]]:
    """(method, path, handler) of the market data API."""
    return [
        ("GET", "/v2/stocks/bars", lambda r: (OK, data.bars(r.query, r.moment))),
        ("GET", "/v2/stocks/trades/latest", lambda r: (OK, {"trades": data.latest_trades(r.query, r.moment)})),
        ("GET", "/v2/stocks/quotes/latest", lambda r: (OK, {"quotes": data.latest_quotes(r.query, r.moment)})),
        ("GET", "/v1beta3/crypto/us/bars", lambda r: (OK, data.bars(r.query, r.moment))),
        ("GET", "/v1beta3/crypto/us/latest/trades", lambda r: (OK, {"trades": data.latest_trades(r.query, r.moment)})),
        ("GET", "/v1/corporate-actions", lambda r: (OK, data.corporate_actions(r.query, r.moment))),
    ]


def endpoint_not_found(_: ApiRequest) -> ApiResponse:
    """Handler of every path that has no route."""
    raise ApiError(404, NOT_FOUND, "endpoint not found")


def _cancel_orders(exchange: Exchange, moment: float) -> list[dict[str, Any]]:
    """Entries of a multi-status response for all open orders, except orders that the cancel of another one ends."""
    return [
        {"id": order.id, **_status_and_body(partial(exchange.cancel, order.id, moment), failure=500)}
        for order in exchange.open_orders()
        if order.open
    ]


def _status_and_body(send: Callable[[], Order], failure: int = 0) -> dict[str, Any]:
    """Part of an entry of a multi-status response. failure: status of an error; 0 for its own."""
    try:
        return {"status": OK, "body": send().to_json()}
    except ApiError as error:
        return {"status": failure or error.status, "body": error.body}


class TrafficLog:
    """Numbered records in memory and, if a path is given, as JSON lines in a file. Request headers are not logged.

    Kinds of records: "request" (written with the response; `arrived` is the time of arrival), "order" (every event of
    an order), "account" (close, reset, split), "stream" (connected, fault, ...), "server" (started, stopped).
    """

    def __init__(self, path: Path | None = None) -> None:
        self.records: list[dict[str, Any]] = []
        self._file: TextIO | None = None if path is None else path.open("a", encoding="utf-8")

    def write(self, kind: str, moment: float, **detail: Any) -> None:
        """Append a record of a simulated time (UTC epoch seconds)."""
        record = {"n": len(self.records), "kind": kind, "at": timestamp(moment), "real": time.monotonic(), **detail}
        self.records.append(record)
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


class RequestCounter:
    """Allows at most `limit` requests in any 60 simulated seconds. Refused requests are not counted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._request_times: deque[float] = deque()

    def take(self, moment: float) -> bool:
        """Count a request at a time (UTC epoch seconds). False, without counting it, if the limit is reached."""
        while self._request_times and self._request_times[0] <= moment - WINDOW_SECONDS:
            self._request_times.popleft()
        if len(self._request_times) >= self.limit:
            return False
        self._request_times.append(moment)
        return True

    def headers(self, moment: float) -> dict[str, str]:
        """Date and rate-limit headers of a response. Reset: epoch seconds at which the oldest request expires."""
        reset = self._request_times[0] + WINDOW_SECONDS if self._request_times else moment
        return {
            "X-RateLimit-Limit": str(self.limit),
            "X-RateLimit-Remaining": str(self.limit - len(self._request_times)),
            "X-RateLimit-Reset": str(math.ceil(reset)),
            "Date": format_datetime(datetime.fromtimestamp(moment, UTC), usegmt=True),
        }


@dataclass(frozen=True)
class RequestPipeline:
    """Turns route handlers into aiohttp handlers. after_handling: called after each of them."""

    exchange: Exchange
    clock: ScaledClock
    faults: Faults
    log: TrafficLog
    is_authorised: Authoriser
    after_handling: Callable[[], None]

    def wrap(self, handler: Handler, counter: RequestCounter) -> Callable[[web.Request], Any]:
        """An aiohttp handler that checks keys and rate limit, applies faults, calls `handler`, and logs the request."""

        async def handle(request: web.Request) -> web.StreamResponse:
            arrival_time = self.clock.seconds()
            next_record = len(self.log.records)
            body = _parse_json(await request.read())
            fault: Fault | None = None
            is_counted = False
            keys = (request.headers.get(h, "") for h in ("APCA-API-KEY-ID", "APCA-API-SECRET-KEY"))
            if not self.is_authorised(*keys):
                status = 401
                content = {"message": "unauthorized."}
            elif not (is_counted := counter.take(arrival_time)):
                status = 429
                content = {"message": "rate limit exceeded"}
            else:
                order = body if isinstance(body, Mapping) else {}
                fault = self.faults.for_request(request.method, request.path, order)
                status, content = await self._call_handler(request, handler, body, fault)
            self.log.write(
                "request",
                self.clock.seconds(),
                arrived=arrival_time,
                after=next_record,
                method=request.method,
                path=request.path,
                query=dict(request.query),
                body=body,
                status=status,
                answer=content if request.method != "GET" or status >= 400 else None,
                counted=is_counted,
                fault=None if fault is None else fault.kind,
            )
            return await self._respond(request, status, content, counter, fault)

        return handle

    async def _call_handler(
        self, request: web.Request, handler: Handler, body: Any, fault: Fault | None
    ) -> ApiResponse:
        """Status and content of the response. A fault that replaces the request leaves the handler uncalled."""
        if fault is not None and fault.kind in ("answer", "drop", "hang"):
            return fault.status, fault.body
        if fault is not None and fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
        self.exchange.advance(self.clock.seconds())
        try:
            result = handler(ApiRequest(request.match_info, request.query, body, self.exchange.now))
        except ApiError as error:
            result = error.status, error.body
        self.after_handling()
        return result

    async def _respond(
        self, request: web.Request, status: int, content: Any, counter: RequestCounter, fault: Fault | None
    ) -> web.StreamResponse:
        headers = counter.headers(self.clock.seconds())
        if fault is not None:
            if fault.kind in ("hang", "hang_after"):
                await _wait_while_connected(request, fault.seconds)
            if fault.kind == "drip_after":
                return await _drip(request, headers, fault.seconds)
            if fault.kind in ("hang", "hang_after", "drop", "drop_after"):
                if request.transport is not None:
                    request.transport.abort()
                return web.Response(status=500)
            if fault.kind == "delay_after":
                await asyncio.sleep(fault.seconds)
            if fault.kind == "answer_after":
                status = fault.status
                content = fault.body
            if fault.kind == "edit" and status < 400:
                content = _edit_fields(content, fault.body)
            headers |= fault.headers
        if status == 204:
            return web.Response(status=status, headers=headers)
        text = content if isinstance(content, str) else json.dumps(content)
        headers.setdefault("Content-Type", "application/json; charset=UTF-8")
        return web.Response(status=status, text=text, headers=headers)


async def _wait_while_connected(request: web.Request, seconds: float) -> None:
    """Wait, but no longer than the client stays connected."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end and request.transport is not None:
        await asyncio.sleep(_DISCONNECT_POLL_SECONDS)


async def _drip(request: web.Request, headers: Mapping[str, str], seconds: float) -> web.StreamResponse:
    """Send single bytes of a response that never ends, then break the connection."""
    response = web.StreamResponse(status=200, headers=dict(headers))
    response.content_type = "application/json"
    response.content_length = _DRIP_LENGTH
    end = asyncio.get_running_loop().time() + seconds
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        while asyncio.get_running_loop().time() < end and request.transport is not None:
            await response.write(b" ")
            await asyncio.sleep(_DRIP_PAUSE)
    if request.transport is not None:
        request.transport.abort()
    return response


def _edit_fields(content: Any, changes: Mapping[str, Any]) -> Any:
    """The content with fields replaced, or removed where the new value is None, in every element of a list."""
    if isinstance(content, list):
        return [_edit_fields(entry, changes) for entry in content]
    if not isinstance(content, Mapping):
        return content
    merged_fields = {**content, **changes}
    return {k: v for k, v in merged_fields.items() if not (k in changes and changes[k] is None)}


def _parse_json(raw: bytes) -> Any:
    """The body as JSON values; None if it is empty, not JSON, or nested too deeply to read."""
    try:
        return json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        return None
