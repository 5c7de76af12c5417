"""Minute bars of the Alpaca feed, against the fake server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from finrl_pod.paper.brokers.alpaca.feed import AlpacaFeed
from finrl_pod.paper.brokers.factory import open_alpaca
from tests.fake_alpaca.server_fixtures import Client, new_york

OPENED = datetime(2024, 3, 1, 14, 30, tzinfo=UTC)


class FixedClock:
    """A clock that stands still, at 11:00:30 in New York."""

    def now(self) -> datetime:
        return OPENED + timedelta(minutes=90, seconds=30)

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        pass

    def real_seconds(self, seconds: float) -> float:
        return seconds


@pytest.fixture
def feed(client: Client, monkeypatch: pytest.MonkeyPatch) -> AlpacaFeed:
    monkeypatch.setenv("APCA_API_KEY_ID", "key")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "secret")
    client.server.jump(new_york("2024-03-01 11:00").replace(second=30))
    return open_alpaca(FixedClock(), client.server.url, listen=False)[1]


def test_complete_minutes_of_all_pages(client: Client, feed: AlpacaFeed) -> None:
    table = feed.minute_bars(["BBB", "AAA"], OPENED, OPENED + timedelta(hours=3), "raw")
    assert table.symbols == ("BBB", "AAA")
    assert len(table.times) == 90  # the minute from 11:00 is not over
    assert table.times[0] == np.datetime64("2024-03-01T14:30")
    served = client(
        "GET", "/v2/stocks/bars", params={"timeframe": "1Min", "symbols": "AAA", "start": "2024-03-01T14:30:00Z"}
    )
    assert table.close[:, 1].tolist() == [bar["c"] for bar in served["bars"]["AAA"]]
    assert len(feed.minute_bars(["AAA"], OPENED, OPENED + timedelta(minutes=5), "raw").times) == 5
