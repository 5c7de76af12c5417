"""Bracket, one-cancels-other and one-triggers-other orders: what is refused, which exit fills, and what it cancels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from finrl_pod.types import Panel
from tests.fake_alpaca.openapi import check
from tests.fake_alpaca.server_fixtures import Client, new_york
from tests.fake_alpaca.test_orders import bar

FAR_ABOVE, FAR_BELOW = "100000", "0.5"


def bracket(client: Client, profit: str, stop: str, **more: Any) -> Any:
    exits = {"take_profit": {"limit_price": profit}, "stop_loss": {"stop_price": stop}}
    return client.buy(order_class="bracket", time_in_force="gtc", **exits, **more)


def statuses(client: Client, order: Any) -> list[str]:
    current = client.order(order)
    return [current["status"], *(leg["status"] for leg in current["legs"])]


def shares_held(client: Client, symbol: str) -> str:
    return next((p["qty"] for p in client("GET", "/v2/positions") if p["symbol"] == symbol), "0")


def test_exits_wait_for_the_entry(client: Client) -> None:
    order = bracket(client, FAR_ABOVE, FAR_BELOW, type="limit", limit_price="5")
    assert [leg["type"] for leg in order["legs"]] == ["limit", "stop"]
    assert {leg["side"] for leg in order["legs"]} == {"sell"}
    assert {leg["order_class"] for leg in order["legs"]} == {"bracket"}
    check("trading", "POST", "/v2/orders", 200, order)
    client.server.jump(new_york("2024-03-01 12:00"))
    assert statuses(client, order) == ["new", "held", "held"]
    refusal = client("PATCH", f"/v2/orders/{order['id']}", 422, json={"limit_price": "6"})
    assert "bracket orders cannot be replaced" in refusal["message"]
    client("DELETE", f"/v2/orders/{order['id']}", 204)
    assert statuses(client, order) == ["canceled"] * 3


@pytest.mark.parametrize("exit_", ["take_profit", "stop_loss"])
def test_the_exit_that_fills_cancels_the_other(client: Client, panel: Panel, exit_: str) -> None:
    days = panel.times[panel.times >= np.datetime64("2024-03-04")]
    for symbol in panel.symbols:
        price = bar(panel, "2024-03-01", symbol)["close"]
        highs, lows = ([bar(panel, str(day)[:10], symbol)[name] for day in days[:8]] for name in ("high", "low"))
        prices = {"profit": f"{max(highs) - 0.02:.2f}", "stop": FAR_BELOW}
        if exit_ == "stop_loss":
            prices = {"profit": FAR_ABOVE, "stop": f"{min(lows) + 0.02:.2f}"}
        if max(highs) > price + 1 if exit_ == "take_profit" else min(lows) < price - 1:
            break
    client.server.jump(new_york("2024-03-01 15:59"))
    order = bracket(client, **prices, symbol=symbol)
    client.server.jump(new_york("2024-03-01 16:00"))
    assert statuses(client, order) == ["filled", "new", "held"]
    assert shares_held(client, symbol) == "10"
    client.server.jump(new_york(f"{str(days[8])[:10]} 09:00"))
    expected = ["filled", "filled", "canceled"] if exit_ == "take_profit" else ["filled", "canceled", "filled"]
    assert statuses(client, order) == expected
    assert shares_held(client, symbol) == "0"


def test_two_exits_reserve_shares_once(client: Client) -> None:
    order = bracket(client, FAR_ABOVE, FAR_BELOW)
    client.server.jump(new_york("2024-03-01 12:00"))
    assert statuses(client, order) == ["filled", "new", "held"]
    assert client("GET", "/v2/positions/AAA")["qty_available"] == "0"
    assert client.buy(status=403, side="sell")["message"].startswith("insufficient qty available")
    client("DELETE", f"/v2/orders/{order['legs'][1]['id']}", 204)
    assert statuses(client, order) == ["filled", "canceled", "canceled"]
    assert client("GET", "/v2/positions/AAA")["qty_available"] == "10"


def test_one_cancels_other(client: Client) -> None:
    client.buy()
    client.server.jump(new_york("2024-03-01 12:00"))
    exits = {"take_profit": {"limit_price": FAR_ABOVE}, "stop_loss": {"stop_price": "1.5", "limit_price": "1.4"}}
    order = client.buy(side="sell", type="limit", time_in_force="gtc", order_class="oco", **exits)
    assert (order["limit_price"], order["legs"][0]["type"]) == (FAR_ABOVE, "stop_limit")
    nested = client("GET", "/v2/orders?nested=true")
    assert [o["id"] for o in nested] == [order["id"]]
    assert [leg["id"] for leg in nested[0]["legs"]] == [order["legs"][0]["id"]]
    flat = client("GET", "/v2/orders")
    assert {o["id"] for o in flat} == {order["id"], order["legs"][0]["id"]}
    client("DELETE", "/v2/orders", 207)
    assert statuses(client, order) == ["canceled", "canceled"]


def test_one_triggers_other(client: Client) -> None:
    order = client.buy(order_class="oto", stop_loss={"stop_price": FAR_BELOW})
    client.server.jump(new_york("2024-03-01 12:00"))
    assert statuses(client, order) == ["filled", "held"]
    client.server.jump(new_york("2024-03-01 16:01"))
    assert statuses(client, order) == ["filled", "expired"]


EXITS = {"take_profit": {"limit_price": FAR_ABOVE}, "stop_loss": {"stop_price": FAR_BELOW}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"order_class": "bracket"}, "bracket orders require take_profit.limit_price"),
        ({"order_class": "bracket", "take_profit": EXITS["take_profit"]}, "require stop_loss.stop_price"),
        ({"order_class": "oto", **EXITS}, "take_profit or stop_loss, and not both"),
        ({"order_class": "simple", **EXITS}, "simple orders require no take_profit"),
        ({"order_class": "mleg"}, "invalid order_class: mleg"),
        ({"order_class": "bracket", **EXITS, "time_in_force": "opg"}, "only support day or gtc"),
        ({"order_class": "bracket", **EXITS, "qty": "1.5"}, "fractional orders must be simple orders"),
        ({"order_class": "bracket", **EXITS, "take_profit": {"limit_price": "0.4"}}, "must be > stop_loss.stop_price"),
        ({"order_class": "bracket", **EXITS, "take_profit": {"limit_price": "0.6"}}, "must be >= base_price + 0.01"),
        ({"order_class": "bracket", **EXITS, "stop_loss": {"stop_price": "1e30"}}, "stop_loss.stop_price"),
        ({"order_class": "bracket", **EXITS, "stop_loss": []}, "require stop_loss"),
        ({"order_class": "bracket", **EXITS, "stop_loss": [1]}, "stop_loss must be an object"),
        ({"order_class": "bracket", **EXITS, "stop_loss": {"stop_price": "x"}}, "is not a number"),
        ({"order_class": "bracket", **EXITS, "stop_loss": {"stop_price": "0.123456"}}, "sub-penny"),
    ],
)
def test_invalid_exits_are_refused(client: Client, fields: dict[str, Any], message: str) -> None:
    assert message in client.buy(**{"status": 422, **fields})["message"]
