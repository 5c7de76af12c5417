"""Minute bars of Alpaca's feed, and the usual volume that slices follow, against the fake server."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from finrl_pod.paper.brokers.alpaca.client import open_alpaca
from finrl_pod.paper.brokers.alpaca.feed import AlpacaFeed
from finrl_pod.paper.domain.schedule import Calendar
from finrl_pod.paper.execution import usual_volume
from finrl_pod.paper.execution.usual_volume import last_volumes, usual_volumes
from finrl_pod.paper.settings import SlicingSettings
from tests.fake_alpaca.server_fixtures import Client, new_york
from tests.paper.factories import config

OPENED = datetime(2024, 3, 1, 14, 30, tzinfo=UTC)
SLICED = config(symbols=("AAA", "BBB"), slicing=SlicingSettings("vwap", 180, 60))


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


def test_usual_volume_is_that_of_the_sessions_before(feed: AlpacaFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usual_volume, "HISTORY_SESSIONS", 3)
    (session,) = Calendar().sessions(OPENED.date(), OPENED.date())
    window = Calendar().slice_window(session, SLICED.schedule, SLICED.slicing)
    found = usual_volumes(feed, SLICED, session.date, window)
    assert set(found) == {"AAA", "BBB"}
    profile = found["AAA"].profile
    assert sum(profile) == pytest.approx(1.0)
    assert profile[0] > profile[1] > profile[2]  # U-shaped over the day
    table = feed.minute_bars(["AAA"], window.start - timedelta(days=5), window.start, "split")
    minute = (table.times - table.times.astype("datetime64[D]")) // np.timedelta64(1, "m") - (14 * 60 + 30)
    days = np.unique(table.times.astype("datetime64[D]"))[-3:]
    within = np.isin(table.times.astype("datetime64[D]"), days) & (minute < 180)
    assert found["AAA"].shares == pytest.approx(table.volume[within, 0].sum() / 3)


def test_last_volume_is_that_of_the_slice_before(feed: AlpacaFeed) -> None:
    (session,) = Calendar().sessions(OPENED.date(), OPENED.date())
    settings = dataclasses.replace(SLICED.slicing, interval_minutes=30)
    window = Calendar().slice_window(session, SLICED.schedule, settings)
    second = feed.minute_bars(["AAA"], OPENED + timedelta(minutes=30), OPENED + timedelta(minutes=60), "raw")
    assert last_volumes(feed, ["AAA"], window, 2) == {"AAA": pytest.approx(float(second.volume.sum()))}
