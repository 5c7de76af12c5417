"""Queries of the trading API: clock, calendar, order list, activities, portfolio history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finrl_pod.fake_alpaca.settings import Settings
from tests.fake_alpaca.server_fixtures import Client, StartServer, new_york


def test_clock_and_the_calendar_follow_the_exchange(start_server: StartServer) -> None:
    client = start_server(start=new_york("2024-03-08 12:00"))  # a Friday, the clocks change on Sunday
    clock = client("GET", "/v2/clock")
    assert clock["is_open"] is True
    assert clock["next_close"] == "2024-03-08T21:00:00.000000Z"
    assert clock["next_open"] == "2024-03-11T13:30:00.000000Z"
    days = client("GET", "/v2/calendar", params={"start": "2024-07-01", "end": "2024-07-07"})
    assert [(d["date"], d["open"], d["close"]) for d in days] == [
        ("2024-07-01", "09:30", "16:00"),
        ("2024-07-02", "09:30", "16:00"),
        ("2024-07-03", "09:30", "13:00"),
        ("2024-07-05", "09:30", "16:00"),
    ]


def submit_many(client: Client, count: int) -> list[str]:
    """Ids of that many open orders, submitted without HTTP."""
    exchange = client.server.exchange
    order = {"symbol": "AAA", "qty": "1", "side": "buy", "type": "limit", "limit_price": "5", "time_in_force": "day"}

    def submit() -> list[str]:
        return [exchange.submit({**order, "client_order_id": f"o{i}"}, exchange.now).id for i in range(count)]

    return client.server.call(submit)


def test_paging_by_submission_time_finds_every_order(start_server: StartServer) -> None:
    client = start_server(Settings(rate_limit=10_000))
    submitted = submit_many(client, 520)
    found: list[str] = []
    query: dict[str, Any] = {"status": "all", "limit": 500, "direction": "asc"}
    while page := client("GET", "/v2/orders", params=query):
        found += [order["id"] for order in page]
        query["after"] = page[-1]["submitted_at"]
    assert found == submitted
    assert len(client("GET", "/v2/orders")) == 50
    assert client("GET", "/v2/orders", params={"limit": 500})[0]["id"] == submitted[-1]
    assert "invalid limit" in client("GET", "/v2/orders", 422, params={"limit": 501})["message"]


def test_filters_of_the_order_list(client: Client) -> None:
    first = client.buy(client_order_id="first")
    second = client.buy(symbol="BBB", type="limit", limit_price="5")
    client("DELETE", f"/v2/orders/{first['id']}", 204)

    def ids(**query: str) -> list[str]:
        return [order["id"] for order in client("GET", "/v2/orders", params=query)]

    assert ids() == [second["id"]]
    assert ids(status="closed") == [first["id"]]
    assert ids(status="all", symbols="AAA") == [first["id"]]
    assert ids(status="all", until=second["submitted_at"]) == [first["id"]]
    assert ids(status="all", side="sell") == []
    found = client("GET", "/v2/orders:by_client_order_id", params={"client_order_id": "first"})
    assert (found["id"], found["status"]) == (first["id"], "canceled")
    missing = client("GET", "/v2/orders:by_client_order_id", 404, params={"client_order_id": "none"})
    assert missing["code"] == 40410000


@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_activities_are_paged_by_the_id_of_the_last_entry(start_server: StartServer, direction: str) -> None:
    client = start_server(Settings(partial=0.5, rate_limit=10_000))
    for i in range(40):
        client.buy(qty="10", client_order_id=f"o{i}")
    client.server.jump(new_york("2024-03-01 12:00"))
    unpaged = client("GET", "/v2/account/activities", params={"direction": direction})
    assert 40 < len(unpaged) < 80
    assert sum(int(fill["qty"]) for fill in unpaged) == 400
    found: list[dict[str, Any]] = []
    query = {"direction": direction, "page_size": "7", "activity_types": "FILL"}
    while page := client("GET", "/v2/account/activities", params=query):
        found += page
        query["page_token"] = page[-1]["id"]
    assert found == unpaged
    assert len({fill["id"] for fill in unpaged}) == len(unpaged)


def test_portfolio_history_has_the_equity_at_each_close(start_server: StartServer, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    client = start_server(state=state)
    client.buy(qty="100", time_in_force="opg")
    client.server.jump(new_york("2024-03-04 17:00"))
    history = client("GET", "/v2/account/portfolio/history")
    account = client("GET", "/v2/account")
    closes = [new_york(f"2024-03-0{day} 16:00").timestamp() for day in (1, 4)]
    assert history["timestamp"] == closes
    assert history["equity"][-1] == float(account["equity"]) == float(account["last_equity"])
    assert history["profit_loss"][-1] == pytest.approx(float(account["equity"]) - 100_000)
    later = client("GET", "/v2/account/portfolio/history", params={"start": "2024-03-02", "timeframe": "1D"})
    assert later["equity"] == history["equity"][1:]
    refusal = client("GET", "/v2/account/portfolio/history", 422, params={"timeframe": "1Min"})
    assert refusal["message"] == "invalid timeframe: 1Min"
    client.server.__exit__()
    assert start_server(state=state)("GET", "/v2/account/portfolio/history") == history


def test_removed_day_trading_fields_are_returned_only_on_request(start_server: StartServer) -> None:
    removed_fields = {"pattern_day_trader", "daytrade_count", "daytrading_buying_power"}
    assert not removed_fields & set(start_server()("GET", "/v2/account"))
    assert removed_fields <= set(start_server(Settings(day_trading_rule=True))("GET", "/v2/account"))
