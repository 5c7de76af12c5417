"""The HTTP and websocket server around the exchange: loopback alone, one event loop, every request logged."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import date, datetime
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from finrl_pod.errors import EnvironmentLacks, InputError
from finrl_pod.fake_alpaca.answering import Answering, unknown
from finrl_pod.fake_alpaca.control import control_routes
from finrl_pod.fake_alpaca.data_api import MarketData
from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.faults import Fault, Faults
from finrl_pod.fake_alpaca.pacing import Pacer
from finrl_pod.fake_alpaca.prices import Prices
from finrl_pod.fake_alpaca.routes import data_routes, trading_routes
from finrl_pod.fake_alpaca.scaled_clock import Pace, ScaledClock
from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.fake_alpaca.stream import Hub
from finrl_pod.fake_alpaca.traffic import RequestCount, TrafficLog
from finrl_pod.files import read_json, write_json
from finrl_pod.types import Panel

HOST = "127.0.0.1"
_SHORTEST = 0.0005
_STATE_VERSION = 1
_MORNING = 8  # New York time at which a server that is told a date begins

Result = TypeVar("Result")


class FakeAlpaca:
    """A server on a loopback port, used as a context manager.

    start: when simulated time begins (aware), or a session's date for 8:00 in New York. pace: how it runs on. port: 0
    takes a free one. log: a file for the traffic log (appended to). state: a file that keeps account, orders and time
    over a restart; it is written at every close of a session and when the server stops. clock: a file by which other
    processes follow the clock (`FollowedClock`). busy_speed: the slow speed of the pace while somebody asks (and a
    moment longer), so that a slow machine does not cost simulated minutes; None leaves it.

    Raises InputError for a panel or a start that cannot be served.
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
        busy_speed: float | None = None,
    ) -> None:
        self.settings = settings or Settings()
        prices = Prices(panel, self.settings.actions)
        kept = None if state is None or not state.exists() else _read_state(state, panel, self.settings)
        begin = _begin(prices, start) if kept is None else datetime.fromisoformat(kept["now"])
        self.log = TrafficLog(log)
        self.exchange = Exchange(prices, self.settings, begin.timestamp())
        if kept is not None:
            self.exchange.restore(kept["exchange"])
        self.data = MarketData(prices, sip=self.settings.sip)
        self.faults = Faults(faults, self.settings.seed)
        self.clock = ScaledClock(begin, pace or Pace(), clock)
        self._counts = {name: RequestCount(self.settings.rate_limit) for name in ("trading", "data")}
        self.hub = Hub(self.faults, self.log, self.clock.seconds, self._authorised)
        self._panel_sha256 = panel.sha256
        self._state = state
        self._port = port
        self.pacer = Pacer(self.clock, busy_speed)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._wake: asyncio.Event | None = None
        self.exchange.listeners.append(self._hear)

    # ---- running --------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The base address of trading and data; the stream is at /stream."""
        return f"http://{HOST}:{self._port}"

    @property
    def stream_url(self) -> str:
        return f"ws://{HOST}:{self._port}/stream"

    def __enter__(self) -> FakeAlpaca:
        """Serve from a thread of its own until the context ends."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run_thread, args=(ready,), name="fake-alpaca", daemon=True)
        self._thread.start()
        ready.result(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=30)

    def call(self, function: Callable[[], Result]) -> Result:
        """Run a function in the server's thread, between two requests: how tests look at the exchange and change it."""
        assert self._loop is not None, "the server does not run"
        result: Future[Result] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result(timeout=30)

    def jump(self, to: datetime) -> None:
        """Let everything due until a later moment happen at once, and go on from there."""

        def go() -> None:
            self.clock.jump(to)
            self.exchange.advance(self.clock.seconds())

        self.call(go)

    async def serve(self, ready: Callable[[], None] = lambda: None, stop: asyncio.Event | None = None) -> None:
        """Serve until `stop` is set. Raises EnvironmentLacks when the port is taken."""
        self._loop, self._stop, self._wake = asyncio.get_running_loop(), stop or asyncio.Event(), asyncio.Event()
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, HOST, self._port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise EnvironmentLacks(
                f"port {self._port} cannot be used ({error.strerror}): name another with --port"
            ) from None
        self._port = runner.addresses[0][1]
        self.log.write("server", self.clock.seconds(), what="started", url=self.url, settings=_plain(self.settings))
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

    def save(self) -> None:
        """Write the state file, where one was named."""
        if self._state is not None:
            now = self.clock.now()
            kept = {"version": _STATE_VERSION, "panel": self._panel_sha256, "seed": self.settings.seed}
            write_json(self._state, {**kept, "now": now.isoformat(), "exchange": self.exchange.kept()})

    def _run_thread(self, ready: Future[None]) -> None:
        try:
            asyncio.run(self.serve(lambda: ready.set_result(None)))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def set_pace(self, pace: Pace) -> None:
        """Go on at another pace."""
        self.pacer.set(pace)

    def follow(self, awake: float, asleep: float) -> None:
        """Let time run as the daemon's sleep allows, see `Pacer.follow`."""
        self.call(lambda: self.pacer.follow(awake, asleep))

    def at(self, moment: float, deed: Callable[[], None] = lambda: None) -> threading.Event:
        """Do something in the server's thread at a simulated moment; the event is set when it is done."""
        done = threading.Event()

        def act() -> None:
            self.exchange.advance(moment)
            deed()
            done.set()

        self.call(lambda: self.pacer.at(moment, act))
        return done

    async def _tick(self) -> None:
        """Let things happen when they are due, without anybody asking."""
        assert self._wake is not None
        while True:
            due = self.exchange.next_due()
            wait = self.pacer.next_look
            if due is not None:
                wait = min(self.clock.real_until(due), wait)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(wait, _SHORTEST))
            self._wake.clear()
            self.pacer.look()
            self.exchange.advance(self.clock.seconds())

    def _hear(self, kind: str, event: dict[str, Any]) -> None:
        self.log.write(kind, self.exchange.now, **event)
        if kind == "order":
            self.hub.publish(event)
        elif event["event"] == "close":
            self.save()

    # ---- requests -------------------------------------------------------------------------------------------------

    def _application(self) -> web.Application:
        application = web.Application()
        answering = Answering(
            self.exchange, self.clock, self.pacer, self.faults, self.log, self._authorised, self._look_again
        )
        for limit, routes in (("trading", trading_routes(self.exchange)), ("data", data_routes(self.data))):
            for method, path, handler in routes:
                application.router.add_route(method, path, answering.answering(handler, self._counts[limit]))
        application.router.add_get("/stream", self.hub.serve)
        application.add_routes(control_routes(self))
        application.router.add_route("*", "/{tail:.*}", answering.answering(unknown, self._counts["trading"]))
        return application

    def _look_again(self) -> None:
        """Something may be due sooner than the ticking knows."""
        assert self._wake is not None
        self._wake.set()

    def _authorised(self, key: str, secret: str) -> bool:
        settings = self.settings
        return bool(key and secret) and settings.key in ("", key) and settings.secret in ("", secret)


def _plain(settings: Settings) -> dict[str, Any]:
    """For the log: everything but the keys."""
    values = {k: v for k, v in dataclasses.asdict(settings).items() if k not in ("key", "secret")}
    return json.loads(json.dumps(values, default=str))  # type: ignore[no-any-return]


def _begin(prices: Prices, start: datetime | date) -> datetime:
    day = start if not isinstance(start, datetime) else start.date()
    if not prices.dates[0] <= day <= prices.dates[-1]:
        raise InputError(
            f"the fake server can start from {prices.dates[0]} to {prices.dates[-1]} on this panel, not on {day}"
        )
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InputError(f"the fake server's start needs a time zone, got {start.isoformat()}")
        return start
    from finrl_pod.fake_alpaca.sessions import NEW_YORK

    return datetime(day.year, day.month, day.day, _MORNING, tzinfo=NEW_YORK)


def _read_state(path: Path, panel: Panel, settings: Settings) -> dict[str, Any]:
    kept = read_json(path)
    mine = {"version": _STATE_VERSION, "panel": panel.sha256, "seed": settings.seed}
    for name, value in mine.items():
        if kept.get(name) != value:
            raise InputError(
                f"{path} was kept by a server with another {name}: name another file, or start with the same"
            )
    return kept
