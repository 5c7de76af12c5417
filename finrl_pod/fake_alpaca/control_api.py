"""HTTP control API under /fake: faults, clock jumps, market conditions and external orders for tests and demos."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from aiohttp import web

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca.data_api import MarketData
from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.faults import Fault, Faults
from finrl_pod.fake_alpaca.request_pipeline import TrafficLog
from finrl_pod.fake_alpaca.scaled_clock import Pace, ScaledClock
from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.fake_alpaca.wire_format import ApiError

_NUMERIC_CONDITIONS = ("fill_delay", "cancel_delay", "replace_delay", "clock_skew")


class ControlledServer(Protocol):
    """The parts of a `FakeAlpaca` server that the control API reads and changes."""

    settings: Settings
    exchange: Exchange
    data: MarketData
    faults: Faults
    clock: ScaledClock
    log: TrafficLog

    def set_pace(self, pace: Pace) -> None: ...

    def save(self) -> None: ...


def control_routes(server: ControlledServer) -> list[web.RouteDef]:
    """Routes under /fake. They need no keys (loopback only) and are neither rate-limited nor logged as requests."""

    async def state(_: web.Request) -> web.Response:
        exchange = server.exchange
        exchange.advance(server.clock.seconds())
        return web.json_response(
            {
                "now": server.clock.now().isoformat(),
                "cash": str(exchange.ledger.cash),
                "equity": str(exchange.balances(exchange.now).equity),
                "positions": {s: str(h.qty) for s, h in sorted(exchange.ledger.holdings.items())},
                "orders": len(exchange.orders),
                "open_orders": len(exchange.open_orders()),
                "faults_waiting": len(server.faults.waiting),
                "records": len(server.log.records),
            }
        )

    async def add_faults(request: web.Request) -> web.Response:
        rules = await request.json()
        server.faults.add([Fault.from_json(rule) for rule in (rules if isinstance(rules, list) else [rules])])
        return web.json_response({"waiting": len(server.faults.waiting)})

    async def clear_faults(_: web.Request) -> web.Response:
        server.faults.clear()
        return web.json_response({"waiting": 0})

    async def clock(request: web.Request) -> web.Response:
        change = await request.json()
        if "jump" in change:
            server.clock.jump(datetime.fromisoformat(change["jump"]))
            server.exchange.advance(server.clock.seconds())
        if "slow" in change or "fast" in change:
            pace = server.clock.pace
            server.set_pace(Pace(change.get("slow", pace.slow), change.get("fast", pace.fast), pace.windows))
        return web.json_response({"now": server.clock.now().isoformat()})

    async def submit_external_order(request: web.Request) -> web.Response:
        """Submit an order of another client to the same account."""
        order = server.exchange.submit(await request.json(), server.clock.seconds(), "foreign")
        return web.json_response(order.to_json())

    async def conditions(request: web.Request) -> web.Response:
        _change_conditions(server, await request.json())
        return web.json_response({"ok": True})

    async def reset(request: web.Request) -> web.Response:
        options = json.loads(await request.read() or b"{}")
        server.exchange.reset(Decimal(str(options.get("cash", server.settings.cash))), server.clock.seconds())
        return web.json_response({"account": server.exchange.account_number})

    async def records(request: web.Request) -> web.Response:
        first = int(request.query.get("after", "-1")) + 1
        return web.json_response(server.log.records[first:])

    async def save(_: web.Request) -> web.Response:
        server.save()
        return web.json_response({"ok": True})

    return [
        web.get("/fake/state", _with_error_responses(state)),
        web.post("/fake/faults", _with_error_responses(add_faults)),
        web.delete("/fake/faults", _with_error_responses(clear_faults)),
        web.post("/fake/clock", _with_error_responses(clock)),
        web.post("/fake/orders", _with_error_responses(submit_external_order)),
        web.post("/fake/conditions", _with_error_responses(conditions)),
        web.post("/fake/reset", _with_error_responses(reset)),
        web.get("/fake/log", _with_error_responses(records)),
        web.post("/fake/save", _with_error_responses(save)),
    ]


def _change_conditions(server: ControlledServer, change: Mapping[str, Any]) -> None:
    """Apply halts, delays and bar flaws, such as {"fill_delay": 60}. Raises InputError for an unknown key."""
    known_keys = {"halted", "untradable", "suspended", "stale_after", "edits", *_NUMERIC_CONDITIONS}
    unknown = set(change) - known_keys
    if unknown:
        raise InputError(f"unknown conditions {', '.join(sorted(unknown))}; use {', '.join(sorted(known_keys))}")
    exchange = server.exchange
    moment = server.clock.seconds()
    exchange.advance(moment)
    resumed_symbols = exchange.conditions.halted_symbols - set(change["halted"]) if "halted" in change else set()
    exchange.conditions.halted_symbols |= set(change.get("halted", ()))
    for symbol in sorted(resumed_symbols):
        exchange.resume(symbol, moment)
    if "untradable" in change:
        exchange.conditions.untradable = set(change["untradable"])
    if "suspended" in change:
        exchange.conditions.is_suspended = change["suspended"] is True
    for name in _NUMERIC_CONDITIONS:
        if name in change:
            setattr(exchange.conditions, name, float(change[name]))
    if "stale_after" in change:
        server.data.flaws.stale_after = str(change["stale_after"])
    if "edits" in change:
        server.data.flaws.edits = {(e["symbol"], e.get("date", "")): dict(e["fields"]) for e in change["edits"]}


def _with_error_responses(
    handler: Callable[[web.Request], Awaitable[web.Response]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Wrap a handler: errors in its input become JSON responses."""

    async def handle(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except ApiError as error:
            return web.json_response(error.body, status=error.status)
        except (InputError, ValueError, KeyError, TypeError) as error:
            return web.json_response({"message": f"{type(error).__name__}: {error}"}, status=400)

    return handle
