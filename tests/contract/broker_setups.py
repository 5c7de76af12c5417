"""A broker, its data feed and control of its clock, for each kind of broker that the contract tests run against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import requests

from finrl_pod.fake_alpaca.scaled_clock import ClockClient
from finrl_pod.paper.brokers.factory import open_alpaca
from finrl_pod.paper.domain.port import Broker, Clock, DataFeed
from tests.contract.fake_server import serve

NEW_YORK = ZoneInfo("America/New_York")
BROKER_KINDS = ["simulated", "alpaca"]
MAX_TIMEOUT = 1.0  # real seconds


def new_york(text: str) -> datetime:
    """A New York time, e.g. "2024-03-01 09:30"."""
    return datetime.fromisoformat(text).replace(tzinfo=NEW_YORK)


class BrokerSetup(Protocol):
    """A broker with its feed, at 8:00 on 2024-03-01 with $100,000."""

    broker: Broker
    feed: DataFeed

    def jump(self, text: str) -> None:
        """Move the broker's clock to a New York time."""
        ...


class ShortTimeoutClock:
    """A clock whose timeouts last at most MAX_TIMEOUT real seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        self._clock.sleep(seconds, max_real_seconds)

    def real_seconds(self, seconds: float) -> float:
        return min(seconds, MAX_TIMEOUT)


class HttpSetup:
    """A broker connected to a fake Alpaca server."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.url = addresses["url"]
        self.clock = ShortTimeoutClock(ClockClient(Path(addresses["clock"])))
        self.broker, self.feed = open_alpaca(self.clock, self.url)
        self._session = requests.Session()
        self._session.trust_env = False

    def jump(self, text: str) -> None:
        self.control("clock", {"jump": new_york(text).isoformat()})

    def control(self, what: str, body: Any = None) -> Any:
        """POST a body to the server's control API, or GET without one."""
        method = "GET" if body is None else "POST"
        response = self._session.request(method, f"{self.url}/fake/{what}", json=body, timeout=10)
        response.raise_for_status()
        return response.json()

    def add_fault(self, kind: str, **rule: Any) -> None:
        self.control("faults", {"kind": kind, **rule})

    def requests(self, method: str = "", path: str = "") -> list[dict[str, Any]]:
        """Logged requests with this method and part of the path."""
        records = self.control("log")
        return [r for r in records if r["kind"] == "request" and r["method"].startswith(method) and path in r["path"]]

    def close(self) -> None:
        self.broker.close()
        self._session.close()


class SimulatedSetup:
    """The simulated broker on the panel that the fake server serves."""

    def __init__(self) -> None:
        from finrl_pod.paper.brokers.simulated import SimulatedBroker
        from finrl_pod.paper.domain.clocks import ManualClock
        from tests.fake_alpaca.server_fixtures import small_panel

        self._clock = ManualClock(new_york("2024-03-01 08:00"))
        broker = SimulatedBroker(small_panel(), self._clock, Decimal(100_000))
        self.broker, self.feed = broker, broker

    def jump(self, text: str) -> None:
        self._clock.sleep((new_york(text) - self._clock.now()).total_seconds())


@contextmanager
def broker_setup(kind: str, **options: Any) -> Iterator[Any]:
    """A setup of one kind. options: settings of the fake server."""
    if kind == "simulated":
        yield SimulatedSetup()
        return
    with serve(**options) as addresses:
        setup = HttpSetup(addresses)
        yield setup
        setup.close()
