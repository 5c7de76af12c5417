"""Minute bars of the fake server."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.fake_alpaca.server_fixtures import Client, new_york

DAY = {"start": "2024-03-01T14:30:00Z", "end": "2024-03-01T21:00:00Z", "symbols": "AAA"}


def minute_bars(client: Client, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    parameters = {"timeframe": "1Min", **DAY, **query}
    while True:
        answer = client("GET", "/v2/stocks/bars", params=parameters)
        found += answer["bars"].get("AAA", [])
        if answer["next_page_token"] is None:
            return found
        parameters["page_token"] = answer["next_page_token"]


def test_minutes_add_up_to_the_daily_bar(client: Client) -> None:
    client.server.jump(new_york("2024-03-01 16:00"))
    bars = minute_bars(client)
    daily = client("GET", "/v2/stocks/bars", params={"timeframe": "1Day", "symbols": "AAA", "start": "2024-03-01"})
    day = daily["bars"]["AAA"][0]
    assert len(bars) == 390
    assert (bars[0]["t"], bars[-1]["t"]) == ("2024-03-01T14:30:00Z", "2024-03-01T20:59:00Z")
    assert bars[0]["o"] == pytest.approx(day["o"])
    assert bars[-1]["c"] == pytest.approx(day["c"])
    assert max(bar["h"] for bar in bars) == pytest.approx(day["h"])
    assert min(bar["l"] for bar in bars) == pytest.approx(day["l"])
    assert sum(bar["v"] for bar in bars) == pytest.approx(day["v"], abs=390)
    assert bars[0]["v"] > 1.5 * bars[195]["v"]  # U-shaped
    for before, bar in itertools.pairwise(bars):
        assert before["c"] == pytest.approx(bar["o"])


def test_only_complete_bars_of_the_asked_length(client: Client) -> None:
    client.server.jump(new_york("2024-03-01 09:44"))
    assert [bar["t"][11:16] for bar in minute_bars(client, timeframe="5Min")] == ["14:30", "14:35"]
    assert len(minute_bars(client, limit=4)) == 14
    assert minute_bars(client, limit=4) == minute_bars(client)


@pytest.mark.parametrize("timeframe", ["7Min", "45Min", "1Hour", "Min", "99Min"])
def test_other_timeframes_are_refused_in_words(client: Client, timeframe: str) -> None:
    answer = client("GET", "/v2/stocks/bars", params={**DAY, "timeframe": timeframe}, status=400)
    assert "invalid timeframe" in answer["message"]
