"""Minute bars of the fake server: over REST, and streamed to Alpaca's own client library."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aiohttp import ClientSession

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


def test_stream_sends_each_minute_once_to_its_subscribers(client: Client) -> None:
    server = client.server
    server.jump(new_york("2024-03-01 09:31"))

    async def listen() -> list[Any]:
        messages: list[Any] = []
        url = server.url.replace("http", "ws") + "/v2/iex"
        async with ClientSession() as session, session.ws_connect(url) as socket:
            messages += json.loads(await socket.receive_str())
            await socket.send_json({"action": "subscribe", "bars": ["AAA"]})
            messages += json.loads(await socket.receive_str())
            await socket.send_json({"action": "auth", "key": "k", "secret": "s"})
            messages += json.loads(await socket.receive_str())
            await socket.send_json({"action": "subscribe", "bars": ["AAA", "ZZZ"]})
            messages += json.loads(await socket.receive_str())
            for minute in (32, 33):
                await asyncio.to_thread(server.jump, new_york(f"2024-03-01 09:{minute}"))
                messages += json.loads(await socket.receive_str())
        return messages

    with ThreadPoolExecutor(1) as pool:  # the browser tests leave an event loop running in the main thread
        messages = pool.submit(asyncio.run, listen()).result()
    assert [(m["T"], m.get("msg")) for m in messages[:3]] == [
        ("success", "connected"),
        ("error", "not authenticated"),
        ("success", "authenticated"),
    ]
    assert messages[3]["bars"] == ["AAA", "ZZZ"]
    assert [(m["T"], m["S"], m["t"][11:16]) for m in messages[4:]] == [("b", "AAA", "14:31"), ("b", "AAA", "14:32")]
    assert {k: messages[4][k] for k in "ohlcv"} == {k: minute_bars(client)[1][k] for k in "ohlcv"}


def test_alpacas_client_library_receives_minute_bars(client: Client) -> None:
    live = pytest.importorskip("alpaca.data.live")
    server = client.server
    server.jump(new_york("2024-03-01 09:31"))
    stream = live.StockDataStream("key", "secret", url_override=server.url.replace("http", "ws") + "/v2/iex")
    received: list[Any] = []

    async def on_bar(bar: Any) -> None:
        received.append(bar)
        await stream.stop_ws()

    stream.subscribe_bars(on_bar, "AAA")
    thread = threading.Thread(target=stream.run, daemon=True)
    thread.start()
    for _ in range(600):
        if server.call(lambda: any(s.symbols for s in server.bars._subscribers.values())):
            break
        threading.Event().wait(0.05)
    server.jump(new_york("2024-03-01 09:32"))
    thread.join(timeout=30)
    assert [(bar.symbol, bar.timestamp.isoformat()) for bar in received] == [("AAA", "2024-03-01T14:31:00+00:00")]
