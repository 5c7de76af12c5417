"""A broker, its data feed and control of its clock, for each kind of broker that the contract tests run against.

Nothing here imports torch at module level: the tests also run in the environment of alpaca-trade-api.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import requests

from finrl_pod.fake_alpaca.scaled_clock import ClockClient
from finrl_pod.paper.domain.port import Broker, Clock, DataFeed
from tests.contract.fake_server import serve

NEW_YORK = ZoneInfo("America/New_York")
BROKER_KINDS = ["alpaca-trade-api"] if find_spec("alpaca_trade_api") else ["simulated", "alpaca"]
HTTP_BROKER_KINDS = [kind for kind in BROKER_KINDS if kind != "simulated"]
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

    def __init__(self, addresses: dict[str, str], kind: str) -> None:
        self.url = addresses["url"]
        self.clock = ShortTimeoutClock(ClockClient(Path(addresses["clock"])))
        self.broker, self.feed = broker_opener(kind)(self.clock, self.url)
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


def broker_opener(kind: str) -> Callable[..., tuple[Any, Any]]:
    """The function that opens broker and feed of a kind."""
    from finrl_pod.paper.brokers.alpaca.client import open_alpaca

    if kind == "alpaca-trade-api":
        from finrl_pod.paper.brokers.alpaca.legacy import TradeApiLibrary

        return partial(open_alpaca, library=TradeApiLibrary)

    return open_alpaca


@contextmanager
def broker_setup(kind: str, **options: Any) -> Iterator[Any]:
    """A setup of one kind. options: settings of the fake server."""
    if kind == "simulated":
        yield SimulatedSetup()
        return
    with serve(**options) as addresses:
        setup = HttpSetup(addresses, kind)
        yield setup
        setup.close()
