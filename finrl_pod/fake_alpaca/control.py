"""HTTP control API under /fake: faults, clock jumps, market conditions and foreign orders for tests and demos."""

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
from finrl_pod.fake_alpaca.orders import Refusal
from finrl_pod.fake_alpaca.scaled_clock import Pace, ScaledClock
from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.fake_alpaca.traffic import TrafficLog

_DELAYS = ("fill_delay", "cancel_delay", "replace_delay", "clock_skew")


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
    """Neither counted nor logged as requests; no keys are needed, the loopback is enough."""

    async def state(_: web.Request) -> web.Response:
        exchange = server.exchange
        exchange.advance(server.clock.seconds())
        return web.json_response(
            {
                "now": server.clock.now().isoformat(),
                "cash": str(exchange.ledger.cash),
                "equity": str(exchange.means(exchange.now).equity),
                "positions": {s: str(h.qty) for s, h in sorted(exchange.ledger.holdings.items())},
                "orders": len(exchange.orders),
                "open_orders": len(exchange.open_orders()),
                "faults_waiting": len(server.faults.waiting),
                "records": len(server.log.records),
            }
        )

    async def add_faults(request: web.Request) -> web.Response:
        rules = await request.json()
        server.faults.add([Fault.read(rule) for rule in (rules if isinstance(rules, list) else [rules])])
        return web.json_response({"waiting": len(server.faults.waiting)})

    async def clear_faults(_: web.Request) -> web.Response:
        server.faults.clear()
        return web.json_response({"waiting": 0})

    async def clock(request: web.Request) -> web.Response:
        wish = await request.json()
        if "jump" in wish:
            server.clock.jump(datetime.fromisoformat(wish["jump"]))
            server.exchange.advance(server.clock.seconds())
        if "slow" in wish or "fast" in wish:
            pace = server.clock.pace
            server.set_pace(Pace(wish.get("slow", pace.slow), wish.get("fast", pace.fast), pace.windows))
        return web.json_response({"now": server.clock.now().isoformat()})

    async def order(request: web.Request) -> web.Response:
        """An order that somebody else sends to the same account."""
        return web.json_response(
            server.exchange.submit(await request.json(), server.clock.seconds(), "foreign").plain()
        )

    async def conditions(request: web.Request) -> web.Response:
        _change(server, await request.json())
        return web.json_response({"ok": True})

    async def reset(request: web.Request) -> web.Response:
        wish = json.loads(await request.read() or b"{}")
        server.exchange.reset(Decimal(str(wish.get("cash", server.settings.cash))), server.clock.seconds())
        return web.json_response({"account": server.exchange.account_number})

    async def records(request: web.Request) -> web.Response:
        first = int(request.query.get("after", "-1")) + 1
        return web.json_response(server.log.records[first:])

    async def save(_: web.Request) -> web.Response:
        server.save()
        return web.json_response({"ok": True})

    return [
        web.get("/fake/state", _checked(state)),
        web.post("/fake/faults", _checked(add_faults)),
        web.delete("/fake/faults", _checked(clear_faults)),
        web.post("/fake/clock", _checked(clock)),
        web.post("/fake/orders", _checked(order)),
        web.post("/fake/conditions", _checked(conditions)),
        web.post("/fake/reset", _checked(reset)),
        web.get("/fake/log", _checked(records)),
        web.post("/fake/save", _checked(save)),
    ]


def _change(server: ControlledServer, wish: Mapping[str, Any]) -> None:
    """Halts, delays and faulty bars: {"halted": [...], "untradable": [...], "fill_delay": 60, "stale_after": "..."}."""
    known = {"halted", "untradable", "suspended", "stale_after", "edits", *_DELAYS}
    if not set(wish) <= known:
        raise InputError(f"conditions are {', '.join(sorted(known))}; got {', '.join(sorted(set(wish) - known))}")
    exchange = server.exchange
    moment = server.clock.seconds()
    exchange.advance(moment)
    ended = exchange.conditions.halted - set(wish["halted"]) if "halted" in wish else set()
    exchange.conditions.halted |= set(wish.get("halted", ()))
    for symbol in sorted(ended):
        exchange.resume(symbol, moment)
    if "untradable" in wish:
        exchange.conditions.untradable = set(wish["untradable"])
    if "suspended" in wish:
        exchange.conditions.suspended = wish["suspended"] is True
    for name in _DELAYS:
        if name in wish:
            setattr(exchange.conditions, name, float(wish[name]))
    if "stale_after" in wish:
        server.data.flaws.stale_after = str(wish["stale_after"])
    if "edits" in wish:
        server.data.flaws.edits = {(e["symbol"], e.get("date", "")): dict(e["fields"]) for e in wish["edits"]}


def _checked(
    handler: Callable[[web.Request], Awaitable[web.Response]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Whatever is wrong with the wish comes back as one sentence."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except Refusal as refusal:
            return web.json_response(refusal.body, status=refusal.status)
        except (InputError, ValueError, KeyError, TypeError) as error:
            return web.json_response({"message": f"{type(error).__name__}: {error}"}, status=400)

    return answer
