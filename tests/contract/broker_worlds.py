"""Worlds for the broker contract: a broker, its prices, and a hand on the clock. Nothing here needs torch at import."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from finrl_pod.fake_alpaca.scaled_clock import ClockClient
from finrl_pod.paper.brokers.port import Broker, Clock, DataFeed
from tests.contract.fake_server import serve

NEW_YORK = ZoneInfo("America/New_York")
KINDS = ["alpaca-trade-api"] if find_spec("alpaca_trade_api") else ["simulated", "alpaca"]
OVER_HTTP = [kind for kind in KINDS if kind != "simulated"]
PATIENCE = 1.0  # real seconds of every time limit


def new_york(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=NEW_YORK)


class World(Protocol):
    broker: Broker
    feed: DataFeed

    def jump(self, text: str) -> None:
        """To a moment of 2024 in New York."""
        ...


class Impatient:
    """The server's clock with short time limits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        self._clock.sleep(seconds, max_real_seconds)

    def real_seconds(self, seconds: float) -> float:
        return min(seconds, PATIENCE)


class HttpWorld:
    """A broker that talks to the fake server."""

    def __init__(self, places: dict[str, str], kind: str) -> None:
        self.url = places["url"]
        self.clock = Impatient(ClockClient(Path(places["clock"])))
        self.broker, self.feed = opener(kind)(self.clock, self.url)

    def jump(self, text: str) -> None:
        self.control("clock", {"jump": new_york(text).isoformat()})

    def control(self, what: str, wish: Any = None) -> Any:
        """POST to the control port, or GET without a wish."""
        data = None if wish is None else json.dumps(wish).encode()
        request = urllib.request.Request(f"{self.url}/fake/{what}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def fault(self, kind: str, **rule: Any) -> None:
        self.control("faults", {"kind": kind, **rule})

    def requests(self, method: str = "", path: str = "") -> list[dict[str, Any]]:
        records = self.control("log")
        return [r for r in records if r["kind"] == "request" and r["method"].startswith(method) and path in r["path"]]


def opener(kind: str) -> Callable[..., tuple[Any, Any]]:
    if kind == "alpaca-trade-api":
        from finrl_pod.paper.brokers.alpaca.legacy import open_trade_api

        return open_trade_api
    from finrl_pod.paper.brokers.alpaca.client import open_alpaca

    return open_alpaca


class SimulatedWorld:
    """The project's own broker on the same panel."""

    def __init__(self) -> None:
        from finrl_pod.paper.brokers.simulated import SimulatedBroker
        from finrl_pod.paper.runtime.clocks import ManualClock
        from tests.fake_alpaca.serving import a_panel

        self._clock = ManualClock(new_york("2024-03-01 08:00"))
        broker = SimulatedBroker(a_panel(), self._clock, Decimal(100_000))
        self.broker, self.feed = broker, broker

    def jump(self, text: str) -> None:
        self._clock.sleep((new_york(text) - self._clock.now()).total_seconds())


@contextmanager
def world(kind: str, **options: Any) -> Iterator[Any]:
    """A world at 8:00 on 2024-03-01 with $100,000."""
    if kind == "simulated":
        yield SimulatedWorld()
        return
    with serve(**options) as places:
        made = HttpWorld(places, kind)
        yield made
        made.broker.close()
