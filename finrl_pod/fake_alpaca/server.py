"""HTTP and websocket server around the simulated exchange: loopback only, one event loop, every request logged.

The control API under /fake serves tests and demos: faults, clock jumps, market conditions and external orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from finrl_pod.errors import InputError, SetupError
from finrl_pod.fake_alpaca.data_api import MarketData
from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.faults import Fault, Faults
from finrl_pod.fake_alpaca.prices import NEW_YORK, Prices
from finrl_pod.fake_alpaca.routes import (
    RequestCounter,
    RequestPipeline,
    TrafficLog,
    data_routes,
    endpoint_not_found,
    trading_routes,
)
from finrl_pod.fake_alpaca.scaled_clock import ClockPacer, Pace, ScaledClock
from finrl_pod.fake_alpaca.settings import ConditionsChange, Settings, first_fault
from finrl_pod.fake_alpaca.stream import TradeUpdateHub
from finrl_pod.fake_alpaca.wire_format import ApiError, parse_number
from finrl_pod.files import read_json, write_json
from finrl_pod.types import Panel

HOST = "127.0.0.1"
_MIN_TICK_SECONDS = 0.0005  # minimum real seconds between two polls of the event queue
_STATE_VERSION = 1
_START_HOUR = 8  # New York time at which a server that is started on a date begins
_THREAD_TIMEOUT = 30.0  # real seconds to start, stop, or run a call in the server thread

Result = TypeVar("Result")
_CONDITIONS = TypeAdapter(ConditionsChange)
_INPUT_ERRORS = (InputError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class FakeAlpaca:
    """Fake Alpaca server on a loopback port. A context manager that serves from a background thread.

    start: first simulated time, as a timezone-aware datetime or as the date of a session (8:00 in New York).
    pace: speed of the simulated clock. port: 0 picks a free one. log: file to which the traffic log is appended.
    state: file that keeps account, orders and time across restarts; written at every close and when the server stops.
    clock: file through which other processes share the clock (`ClockClient`).

    Raises InputError for a panel or a start date that cannot be served, and for a state file of another server.
    """

    def __init__(
        self,
        panel: Panel,
        settings: Settings | None = None,
        *,
        start: datetime | date,
        pace: Pace | None = None,
        faults: Sequence[Fault] = (),
        port: int = 0,
        log: Path | None = None,
        state: Path | None = None,
        clock: Path | None = None,
    ) -> None:
        self.settings = settings or Settings()
        prices = Prices(panel, self.settings.actions, continuous=self.settings.crypto)
        saved_state = None if state is None or not state.exists() else _read_state(state, panel, self.settings)
        begin = _start_time(prices, start) if saved_state is None else datetime.fromisoformat(saved_state["now"])
        self.log = TrafficLog(log)
        self.exchange = Exchange(prices, self.settings, begin.timestamp())
        if saved_state is not None:
            self.exchange.restore(saved_state["exchange"])
        self.data = MarketData(prices, sip=self.settings.sip)
        self.faults = Faults(faults, self.settings.seed)
        self.clock = ScaledClock(begin, pace or Pace(), clock)
        self._counters = {name: RequestCounter(self.settings.rate_limit) for name in ("trading", "data")}
        self.hub = TradeUpdateHub(self.faults, self.log, self.clock.seconds, self._is_authorised)
        self._panel_sha256 = panel.sha256
        self._state = state
        self._port = port
        self._pacer = ClockPacer(self.clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._wake: asyncio.Event | None = None
        self.exchange.listeners.append(self._on_exchange_event)

    @property
    def url(self) -> str:
        """Base URL of the trading and market data APIs."""
        return f"http://{HOST}:{self._port}"

    @property
    def stream_url(self) -> str:
        """URL of the trade-updates stream."""
        return f"ws://{HOST}:{self._port}/stream"

    def __enter__(self) -> FakeAlpaca:
        """Start serving from a background thread; returns once the port accepts connections."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run_thread, args=(ready,), name="fake-alpaca", daemon=True)
        self._thread.start()
        ready.result(timeout=_THREAD_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=_THREAD_TIMEOUT)

    async def serve(self, ready: Callable[[], None] = lambda: None, stop: asyncio.Event | None = None) -> None:
        """Serve until `stop` is set and call `ready` once the port is open. Raises SetupError if it is taken."""
        self._loop = asyncio.get_running_loop()
        self._stop = stop or asyncio.Event()
        self._wake = asyncio.Event()
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, HOST, self._port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise SetupError(
                f"port {self._port} cannot be used ({error.strerror}); choose another one with --port"
            ) from None
        self._port = runner.addresses[0][1]
        self.log.write("server", self.clock.seconds(), what="started", url=self.url)
        ticking = asyncio.create_task(self._tick())
        ready()
        try:
            await self._stop.wait()
        finally:
            ticking.cancel()
            await self.hub.close()
            await runner.cleanup()
            self.save()
            self.log.write("server", self.clock.seconds(), what="stopped")
            self.log.close()

    def _run_thread(self, ready: Future[None]) -> None:
        try:
            asyncio.run(self.serve(lambda: ready.set_result(None)))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def save(self) -> None:
        """Write the state file, if one was given."""
        if self._state is not None:
            now = self.clock.now()
            identity = {"version": _STATE_VERSION, "panel": self._panel_sha256, "seed": self.settings.seed}
            write_json(self._state, {**identity, "now": now.isoformat(), "exchange": self.exchange.state()})

    def call(self, function: Callable[[], Result]) -> Result:
        """Run a function in the server thread, between two requests, and return its result."""
        assert self._loop is not None, "the server is not running"
        result: Future[Result] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised again in the thread of the caller
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result(timeout=_THREAD_TIMEOUT)

    def jump(self, to: datetime) -> None:
        """Move the clock to a later time; everything due until then happens first, in order."""

        def jump_in_server_thread() -> None:
            self.clock.jump(to)
            self.exchange.advance(self.clock.seconds())

        self.call(jump_in_server_thread)

    def schedule(self, moment: float, action: Callable[[], None] = lambda: None) -> threading.Event:
        """Call `action` in the server thread at a simulated time; the returned event is set afterwards."""
        is_done = threading.Event()

        def run() -> None:
            self.exchange.advance(moment)
            action()
            is_done.set()

        self.call(lambda: self._pacer.schedule(moment, run))
        return is_done

    def set_pace(self, pace: Pace) -> None:
        """Run the clock at another pace from now on."""
        self._pacer.set(pace)

    def follow_client_sleep(self, awake_speed: float, asleep_speed: float) -> None:
        """Run the clock fast while its client sleeps, see `ClockPacer.follow_client_sleep`."""
        self.call(lambda: self._pacer.follow_client_sleep(awake_speed, asleep_speed))

    async def _tick(self) -> None:
        """Advance the exchange when events are due, also without requests."""
        assert self._wake is not None
        while True:
            due = self.exchange.next_due()
            wait = self._pacer.next_update
            if due is not None:
                wait = min(self.clock.real_until(due), wait)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(wait, _MIN_TICK_SECONDS))
            self._wake.clear()
            self._pacer.update()
            self.exchange.advance(self.clock.seconds())

    def _on_exchange_event(self, kind: str, event: dict[str, Any]) -> None:
        self.log.write(kind, self.exchange.now, **event)
        if kind == "order":
            self.hub.publish(event)
        elif event["event"] == "close":
            self.save()

    def _application(self) -> web.Application:
        application = web.Application()
        assert self._wake is not None
        # A request may schedule an event that is earlier than the end of the wait of `_tick`.
        wake = self._wake.set
        pipeline = RequestPipeline(self.exchange, self.clock, self.faults, self.log, self._is_authorised, wake)
        for limit, routes in (("trading", trading_routes(self.exchange)), ("data", data_routes(self.data))):
            for method, path, handler in routes:
                application.router.add_route(method, path, pipeline.wrap(handler, self._counters[limit]))
        application.router.add_get("/stream", self.hub.serve)
        application.add_routes(_control_routes(self))
        application.router.add_route("*", "/{tail:.*}", pipeline.wrap(endpoint_not_found, self._counters["trading"]))
        return application

    def _is_authorised(self, key: str, secret: str) -> bool:
        settings = self.settings
        return bool(key and secret) and settings.key in ("", key) and settings.secret in ("", secret)


def _start_time(prices: Prices, start: datetime | date) -> datetime:
    day = start if not isinstance(start, datetime) else start.date()
    if not prices.dates[0] <= day <= prices.dates[-1]:
        raise InputError(f"cannot start on {day}: this panel covers {prices.dates[0]} to {prices.dates[-1]}")
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InputError(f"the start time {start.isoformat()} has no time zone; pass a timezone-aware datetime")
        return start
    return datetime(day.year, day.month, day.day, _START_HOUR, tzinfo=NEW_YORK)


def _read_state(path: Path, panel: Panel, settings: Settings) -> dict[str, Any]:
    saved_state = read_json(path)
    identity = {"version": _STATE_VERSION, "panel": panel.sha256, "seed": settings.seed}
    for name, value in identity.items():
        if saved_state.get(name) != value:
            raise InputError(
                f"{path} was written by a server with another {name}; use another --state file or the same {name}"
            )
    return saved_state


# ---- control API -------------------------------------------------------------------------------------------------


def _control_routes(server: FakeAlpaca) -> list[web.RouteDef]:
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

    async def log(request: web.Request) -> web.Response:
        first = int(request.query.get("after", "-1")) + 1
        return web.json_response(server.log.records[first:])

    async def add_faults(request: web.Request) -> web.Response:
        rules = await request.json()
        server.faults.add([Fault.from_json(rule) for rule in (rules if isinstance(rules, list) else [rules])])
        return web.json_response({"waiting": len(server.faults.waiting)})

    async def clear_faults(_: web.Request) -> web.Response:
        server.faults.clear()
        return web.json_response({"waiting": 0})

    async def clock(request: web.Request) -> web.Response:
        change = dict(await request.json())
        if "jump" in change:
            server.clock.jump(_jump_time(server, change["jump"]))
            server.exchange.advance(server.clock.seconds())
        if "slow" in change or "fast" in change:
            pace = server.clock.pace
            server.set_pace(Pace(change.get("slow", pace.slow), change.get("fast", pace.fast), pace.windows))
        return web.json_response({"now": server.clock.now().isoformat()})

    async def submit_external_order(request: web.Request) -> web.Response:
        """Submit an order of another client to the same account."""
        order = server.exchange.submit(await request.json(), server.clock.seconds(), "foreign")
        return web.json_response(order.to_json())

    async def book_activities(request: web.Request) -> web.Response:
        """Book entries of the broker's back office, which belong together."""
        entries = await request.json()
        server.exchange.book_activities(entries if isinstance(entries, list) else [entries], server.clock.seconds())
        return web.json_response({"ok": True})

    async def conditions(request: web.Request) -> web.Response:
        _change_conditions(server, await request.json())
        return web.json_response({"ok": True})

    async def reset(request: web.Request) -> web.Response:
        options = dict(json.loads(await request.read() or b"{}"))
        cash = parse_number(options.get("cash", float(server.settings.cash)))
        if cash < 0:
            raise InputError(f"cash must be at least 0, got {cash}")
        server.exchange.reset(cash, server.clock.seconds())
        return web.json_response({"account": server.exchange.account_number})

    handlers = {
        ("GET", "state"): state,
        ("GET", "log"): log,
        ("POST", "faults"): add_faults,
        ("DELETE", "faults"): clear_faults,
        ("POST", "clock"): clock,
        ("POST", "orders"): submit_external_order,
        ("POST", "activities"): book_activities,
        ("POST", "conditions"): conditions,
        ("POST", "reset"): reset,
    }
    return [
        web.route(method, f"/fake/{name}", _with_error_responses(handler))
        for (method, name), handler in handlers.items()
    ]


def _jump_time(server: FakeAlpaca, text: str) -> datetime:
    """Time of a jump. Raises InputError beyond the last session: the clock needs a next one."""
    to = datetime.fromisoformat(text)
    end = server.exchange.prices.sessions.all[-2].close
    if to.tzinfo is None or to.timestamp() > end:
        raise InputError(f"a jump needs a time with a zone, up to {datetime.fromtimestamp(end, UTC)}; got {text}")
    return to


def _change_conditions(server: FakeAlpaca, values: object) -> None:
    """Apply halts, delays and bar flaws, such as {"fill_delay": 60}. Raises InputError for what is not one of them."""
    try:
        change = _CONDITIONS.validate_python(values)
    except ValidationError as error:
        raise InputError(f"conditions: {first_fault(error)}") from None
    exchange = server.exchange
    moment = server.clock.seconds()
    exchange.advance(moment)
    if change.halted is not None:
        resumed_symbols = exchange.conditions.halted_symbols - change.halted
        exchange.conditions.halted_symbols |= change.halted
        for symbol in sorted(resumed_symbols):
            exchange.resume(symbol, moment)
    if change.suspended is not None:
        exchange.conditions.is_suspended = change.suspended
    for name in ("untradable", "whole_shares", "fill_delay", "cancel_delay", "replace_delay", "clock_skew"):
        if (value := getattr(change, name)) is not None:
            setattr(exchange.conditions, name, value)
    if change.stale_after is not None:
        server.data.flaws.stale_after = change.stale_after
    if change.edits is not None:
        server.data.flaws.edits = {(edit.symbol, edit.date): edit.fields for edit in change.edits}


def _with_error_responses(
    handler: Callable[[web.Request], Awaitable[web.Response]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Wrap a handler: errors in its input become JSON responses."""

    async def handle(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except ApiError as error:
            return web.json_response(error.body, status=error.status)
        except _INPUT_ERRORS as error:
            return web.json_response({"message": f"{type(error).__name__}: {error}"}, status=400)

    return handle
