"""A small panel, a fake Alpaca server that serves it with a stopped clock, and an HTTP client with API keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date, datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import requests

from finrl_pod.data.panel import make_panel
from finrl_pod.fake_alpaca.scaled_clock import Pace
from finrl_pod.fake_alpaca.server import FakeAlpaca
from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.types import Panel

NEW_YORK = ZoneInfo("America/New_York")
STOPPED = Pace(0.0, 0.0)
START_DATE = date(2024, 3, 1)


def new_york(text: str) -> datetime:
    """A New York time, e.g. "2024-03-01 09:30"."""
    return datetime.fromisoformat(text).replace(tzinfo=NEW_YORK)


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Poll a condition until it holds. Fails after that many real seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"condition not met within {seconds:g} s"
        time.sleep(0.01)


@cache
def small_panel(symbols: tuple[str, ...] = ("AAA", "BBB", "CCC"), seed: int = 0) -> Panel:
    """Random walks in cents with volumes, for the NYSE sessions from 2024-01-02 to 2024-07-31."""
    import exchange_calendars

    calendar = exchange_calendars.get_calendar("XNYS", start="2024-01-02", end="2024-08-01")
    times = calendar.sessions[calendar.sessions <= pd.Timestamp("2024-07-31")].to_numpy()
    rng = np.random.default_rng(seed)
    shape = (len(times), len(symbols))
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.02, shape), 0))
    opened = close * np.exp(rng.normal(0, 0.01, shape))
    columns = {
        "open": opened,
        "high": np.maximum(opened, close) * 1.01,
        "low": np.minimum(opened, close) * 0.99,
        "close": close,
    }
    rounded = {name: values.round(2) for name, values in columns.items()}
    return make_panel(times, symbols, {**rounded, "volume": np.full(shape, 1e6)}, name="small")


class Client:
    """HTTP client with API keys for one server. Calling it sends a request and returns the JSON of the response."""

    def __init__(self, server: FakeAlpaca) -> None:
        self.server = server
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers.update({"APCA-API-KEY-ID": "key", "APCA-API-SECRET-KEY": "secret"})

    def __call__(self, method: str, path: str, status: int | None = 200, **options: Any) -> Any:
        """JSON of the response, after a check of its status (None: any)."""
        response = self.raw(method, path, **options)
        assert status in (None, response.status_code), response.text
        return response.json() if response.content else None

    def raw(self, method: str, path: str, **options: Any) -> requests.Response:
        return self._session.request(method, self.server.url + path, timeout=10, **options)

    def buy(self, symbol: str = "AAA", qty: str = "10", status: int | None = 200, **fields: Any) -> Any:
        """Submit a day market order, with `fields` replaced or (None) removed."""
        body = {"symbol": symbol, "qty": qty, "side": "buy", "type": "market", "time_in_force": "day", **fields}
        return self("POST", "/v2/orders", status, json={k: v for k, v in body.items() if v is not None})

    def order(self, order: Any) -> Any:
        return self("GET", f"/v2/orders/{order['id']}")

    def close(self) -> None:
        self._session.close()


StartServer = Callable[..., Client]


@contextmanager
def running_server(settings: Settings | None = None, **options: Any) -> Iterator[Client]:
    """A server at 8:00 on 2024-03-01 with a stopped clock, whose orders fill in one part, unless given otherwise."""
    arguments = {"panel": small_panel(), "start": START_DATE, "pace": STOPPED, **options}
    with FakeAlpaca(arguments.pop("panel"), settings or Settings(partial=0.0), **arguments) as server:
        client = Client(server)
        yield client
        client.close()


@pytest.fixture(scope="session")
def panel() -> Panel:
    return small_panel()


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Function that starts a server, see `running_server`. All are stopped after the test."""
    with ExitStack() as stack:
        yield lambda settings=None, **options: stack.enter_context(running_server(settings, **options))


@pytest.fixture
def client(start_server: StartServer) -> Client:
    return start_server()
