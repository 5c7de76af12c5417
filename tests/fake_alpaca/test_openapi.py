"""Responses of the server validated against Alpaca's own OpenAPI files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from finrl_pod.fake_alpaca.settings import CorporateAction, Settings
from tests.fake_alpaca.openapi import check, check_schema, properties
from tests.fake_alpaca.server_fixtures import Client, new_york, running_server

ACTIONS = (
    CorporateAction("AAA", "2024-03-05", new=4, old=1),
    CorporateAction("BBB", "2024-03-05", new=1, old=10),
    CorporateAction("CCC", "2024-03-05", kind="dividend", cash=1.0),
)
SETTINGS = Settings(partial=1.0, seed=2, actions=ACTIONS)
RANGE = "symbols=AAA,BBB,CCC&start=2024-02-01&end=2024-03-31"
BARS = "symbols=AAA,BBB&timeframe=1Day&start=2024-02-01&limit=10"


@pytest.fixture(scope="module")
def active_account() -> Iterator[Client]:
    """An account with orders and positions, shared by read-only tests."""
    with running_server(SETTINGS) as client:
        yield trade(client)


@pytest.fixture
def mutable_account() -> Iterator[Client]:
    """An account with orders and positions for one test, which may modify it."""
    with running_server(SETTINGS) as client:
        yield trade(client)


def trade(client: Client) -> Client:
    """Give an account filled, open, cancelled, replaced and notional orders, a long and a short position."""
    client.buy(qty="20")
    client.buy(symbol="BBB", side="sell", qty="5")
    client.buy(symbol="CCC", qty=None, notional="250.5")
    client.server.jump(new_york("2024-03-01 12:00"))
    old = client.buy(type="limit", limit_price="5", time_in_force="gtc")
    client.order(old)
    client("PATCH", f"/v2/orders/{old['id']}", json={"qty": "4"})
    cancelled = client.buy(symbol="CCC", type="limit", limit_price="5")
    client("DELETE", f"/v2/orders/{cancelled['id']}", 204)
    client.server.jump(new_york("2024-03-05 12:00"))
    return client


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v2/account", ""),
        ("/v2/account/activities", ""),
        ("/v2/account/configurations", ""),
        ("/v2/account/portfolio/history", ""),
        ("/v2/orders", "status=all"),
        ("/v2/positions", ""),
        ("/v2/assets", ""),
        ("/v2/clock", ""),
        ("/v2/calendar", "start=2024-03-01&end=2024-07-31"),
    ],
)
def test_trading_responses(active_account: Client, path: str, query: str) -> None:
    answer = active_account("GET", f"{path}?{query}")
    assert answer
    check("trading", "GET", path, 200, answer)


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("/v2/positions/{symbol_or_asset_id}", "/v2/positions/AAA"),
        ("/v2/assets/{symbol_or_asset_id}", "/v2/assets/AAA"),
    ],
)
def test_trading_responses_about_one_symbol(active_account: Client, template: str, path: str) -> None:
    check("trading", "GET", template, 200, active_account("GET", path))


def test_activities_of_one_type(active_account: Client) -> None:
    """Against the schema of each type: the path's schema accepts either of two that overlap."""
    for fill in active_account("GET", "/v2/account/activities/FILL"):
        check_schema("trading", "TradingActivities", fill)
    for split in active_account("GET", "/v2/account/activities/SPLIT"):
        check_schema("trading", "NonTradeActivities", split)


def test_responses_to_orders(mutable_account: Client) -> None:
    order = mutable_account.buy(symbol="CCC", qty="1", client_order_id="spec")
    check("trading", "POST", "/v2/orders", 200, order)
    check("trading", "GET", "/v2/orders/{order_id}", 200, mutable_account.order(order))
    found = mutable_account("GET", "/v2/orders:by_client_order_id?client_order_id=spec")
    check("trading", "GET", "/v2/orders:by_client_order_id", 200, found)
    waiting = mutable_account.buy(type="limit", limit_price="5")
    mutable_account.order(waiting)
    changed = mutable_account("PATCH", f"/v2/orders/{waiting['id']}", json={"limit_price": "6"})
    check("trading", "PATCH", "/v2/orders/{order_id}", 200, changed)
    check("trading", "DELETE", "/v2/orders", 207, mutable_account("DELETE", "/v2/orders", 207))
    check("trading", "DELETE", "/v2/positions", 207, mutable_account("DELETE", "/v2/positions?cancel_orders=true", 207))


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("/v2/stocks/bars", f"/v2/stocks/bars?{BARS}"),
        ("/v2/stocks/trades/latest", "/v2/stocks/trades/latest?symbols=AAA"),
        ("/v2/stocks/quotes/latest", "/v2/stocks/quotes/latest?symbols=AAA"),
        ("/v1/corporate-actions", f"/v1/corporate-actions?{RANGE}"),
    ],
)
def test_market_data_responses(active_account: Client, template: str, path: str) -> None:
    answer = active_account("GET", path)
    assert answer
    check("market-data", "GET", template, 200, answer)


def test_validation_finds_errors(mutable_account: Client) -> None:
    """The validation above must fail on faulty responses."""
    order = mutable_account.buy(symbol="CCC", qty="1")
    broken: list[dict[str, Any]] = [{**order, "status": "paused"}, {**order, "id": "7"}, {**order, "qty": 1}]
    for answer in broken:
        with pytest.raises(jsonschema.ValidationError):
            check("trading", "POST", "/v2/orders", 200, answer)
    with pytest.raises(jsonschema.ValidationError):
        check("trading", "GET", "/v2/account", 200, {"status": "ACTIVE"})


def test_responses_have_only_documented_fields(mutable_account: Client) -> None:
    """Beyond those of the files, only fields that the client library or live responses have."""
    assert set(mutable_account.buy(symbol="CCC", qty="1")) <= properties("trading", "Order")
    assert set(mutable_account("GET", "/v2/account")) - properties("trading", "Account") <= {"position_market_value"}
    assert set(mutable_account("GET", "/v2/positions")[0]) <= properties("trading", "Position")
    assert set(mutable_account("GET", "/v2/assets")[0]) - properties("trading", "Assets") <= {"easy_to_borrow"}
