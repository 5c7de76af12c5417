"""A small market and a server that serves it; time stands still until a test moves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
STILL = Pace(0.0, 0.0)
FIRST = date(2024, 3, 1)


def new_york(text: str) -> datetime:
    """ "2024-03-01 09:30" on the clocks of New York."""
    return datetime.fromisoformat(text).replace(tzinfo=NEW_YORK)


@cache
def a_panel(symbols: tuple[str, ...] = ("AAA", "BBB", "CCC"), seed: int = 0) -> Panel:
    """Sessions of the New York exchange from 2024-01-02 to 2024-07-31, random walks in cents, with volumes."""
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
    """Plain requests with keys, the way a test reads best."""

    def __init__(self, server: FakeAlpaca) -> None:
        self.server = server
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers.update({"APCA-API-KEY-ID": "key", "APCA-API-SECRET-KEY": "secret"})

    def __call__(self, method: str, path: str, status: int | None = 200, **options: Any) -> Any:
        """The answer's JSON, after its status was checked."""
        answer = self.raw(method, path, **options)
        assert status in (None, answer.status_code), answer.text
        return answer.json() if answer.content else None

    def raw(self, method: str, path: str, **options: Any) -> requests.Response:
        return self._session.request(method, self.server.url + path, timeout=10, **options)

    def buy(self, symbol: str = "AAA", qty: str = "10", status: int | None = 200, **more: Any) -> Any:
        """A market order for the day, unless `more` says otherwise."""
        body = {"symbol": symbol, "qty": qty, "side": "buy", "type": "market", "time_in_force": "day", **more}
        return self("POST", "/v2/orders", status, json={k: v for k, v in body.items() if v is not None})

    def order(self, order: Any) -> Any:
        return self("GET", f"/v2/orders/{order['id']}")

    def close(self) -> None:
        self._session.close()


Start = Callable[..., Client]


@pytest.fixture(scope="session")
def panel() -> Panel:
    return a_panel()


@pytest.fixture
def start(panel: Panel) -> Iterator[Start]:
    """Start a server at 8:00 on the first of March (or wherever), whose orders fill in one part unless told."""
    running: list[Client] = []

    def begin(settings: Settings | None = None, **options: Any) -> Client:
        given = {"start": FIRST, "pace": STILL, **options}
        server = FakeAlpaca(given.pop("panel", panel), settings or Settings(partial=0.0), **given)
        client = Client(server.__enter__())
        running.append(client)
        return client

    yield begin
    for client in running:
        client.close()
        client.server.__exit__()


@pytest.fixture
def client(start: Start) -> Client:
    return start()
