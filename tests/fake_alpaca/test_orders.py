"""Orders: which are rejected, when and at what price they fill, and how they end."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.types import Panel
from tests.fake_alpaca.server_fixtures import Client, StartServer, new_york


def bar(panel: Panel, day: str, symbol: str = "AAA") -> dict[str, float]:
    row = int(np.flatnonzero(panel.times == np.datetime64(day))[0])
    column = panel.symbols.index(symbol)
    assert panel.open is not None
    assert panel.high is not None
    assert panel.low is not None
    fields = {"open": panel.open, "high": panel.high, "low": panel.low, "close": panel.close}
    return {name: float(values[row, column]) for name, values in fields.items()}


def test_opg_order_fills_at_the_open(client: Client, panel: Panel) -> None:
    order = client.buy(time_in_force="opg")
    assert order["status"] == "accepted"
    client.server.jump(new_york("2024-03-01 09:30"))
    order = client.order(order)
    assert (order["status"], order["filled_qty"]) == ("filled", "10")
    assert float(order["filled_avg_price"]) == bar(panel, "2024-03-01")["open"]
    account = client("GET", "/v2/account")
    assert Decimal(account["cash"]) == 100_000 - 10 * Decimal(order["filled_avg_price"])


def test_cls_order_fills_at_the_close(client: Client, panel: Panel) -> None:
    order = client.buy(time_in_force="cls")
    client.server.jump(new_york("2024-03-01 15:59"))
    assert client.order(order)["status"] == "new"
    client.server.jump(new_york("2024-03-01 16:00"))
    order = client.order(order)
    assert order["status"] == "filled"
    assert float(order["filled_avg_price"]) == bar(panel, "2024-03-01")["close"]


def test_day_order_placed_overnight_fills_at_the_next_open(client: Client, panel: Panel) -> None:
    client.server.jump(new_york("2024-03-01 20:00"))
    order = client.buy(qty="1.123456789")
    client.server.jump(new_york("2024-03-04 09:30"))
    order = client.order(order)
    assert order["filled_qty"] == "1.123456789"
    assert float(order["filled_avg_price"]) == bar(panel, "2024-03-04")["open"]


def test_limit_order_waits_for_its_price_and_expires_with_the_day(client: Client, panel: Panel) -> None:
    low = bar(panel, "2024-03-01")["low"]
    reached = client.buy(type="limit", limit_price=f"{low + 0.01:.2f}")
    missed = client.buy(type="limit", limit_price=f"{low - 0.05:.2f}")
    client.server.jump(new_york("2024-03-01 16:00"))
    reached, missed = client.order(reached), client.order(missed)
    assert reached["status"] == "filled"
    assert float(reached["filled_avg_price"]) <= low + 0.01
    assert (missed["status"], missed["filled_qty"]) == ("expired", "0")
    assert missed["expired_at"] == "2024-03-01T21:00:00.000000Z"


def test_stop_order_fills_at_its_stop_price(client: Client, panel: Panel) -> None:
    high = bar(panel, "2024-03-01")["high"]
    stop = f"{high - 0.01:.2f}"
    order = client.buy(type="stop", stop_price=stop)
    client.server.jump(new_york("2024-03-01 16:00"))
    assert client.order(order)["status"] == "filled"
    assert float(client.order(order)["filled_avg_price"]) == pytest.approx(float(stop), abs=1e-6)


def test_gtc_order_stays_open_over_days(client: Client, panel: Panel) -> None:
    days = [str(t)[:10] for t in panel.times if np.datetime64("2024-03-01") <= t < np.datetime64("2024-05-01")]
    lows = [bar(panel, day)["low"] for day in days]
    limit = sorted(lows[:20])[0] + 0.02
    order = client.buy(type="limit", limit_price=f"{limit:.2f}", time_in_force="gtc")
    client.server.jump(new_york("2024-04-30 18:00"))
    order = client.order(order)
    first = next(day for day, low in zip(days, lows, strict=True) if low <= round(limit, 2))
    assert order["status"] == "filled"
    assert order["filled_at"][:10] == first


@pytest.mark.parametrize(
    ("moment", "time_in_force", "accepted"),
    [
        ("2024-03-01 09:27", "opg", True),
        ("2024-03-01 09:28", "opg", False),
        ("2024-03-01 18:59", "opg", False),
        ("2024-03-01 19:00", "opg", True),
        ("2024-03-02 12:00", "opg", True),  # a Saturday
        ("2024-03-01 15:49", "cls", True),
        ("2024-03-01 15:50", "cls", False),
        ("2024-03-01 19:00", "cls", True),
        ("2024-07-03 12:49", "cls", True),  # the exchange closes at 13:00
        ("2024-07-03 12:50", "cls", False),
    ],
)
def test_auction_orders_are_accepted_only_at_certain_hours(
    start_server: StartServer, moment: str, time_in_force: str, accepted: bool
) -> None:
    client = start_server(start=new_york(moment))
    answer = client.buy(time_in_force=time_in_force, status=200 if accepted else 422)
    assert accepted or (answer["code"], "not accepted" in answer["message"]) == (42210000, True)


@pytest.mark.parametrize(
    ("order", "status", "code", "message"),
    [
        ({"symbol": "ZZZ"}, 422, 42210000, 'asset "ZZZ" not found'),
        ({"symbol": None}, 422, 40010001, "symbol is required"),
        ({"qty": None}, 422, 40010001, "qty or notional is required"),
        ({"notional": "100"}, 422, 40010001, "only one of qty or notional"),
        ({"qty": "-1"}, 422, 40010001, "qty must be > 0"),
        ({"qty": "two"}, 422, 40010001, "qty is not a number"),
        ({"qty": "1.0000000001"}, 422, 40010001, "9 decimal"),
        ({"side": "hold"}, 422, 40010001, "invalid side"),
        ({"type": "limit"}, 422, 40010001, "limit orders require limit price"),
        ({"type": "limit", "limit_price": "10.001"}, 422, 42210000, "sub-penny"),
        ({"type": "limit", "limit_price": "0.12345"}, 422, 42210000, "sub-penny"),
        ({"qty": "0.5", "time_in_force": "opg"}, 422, 42210000, "fractional orders must be DAY orders"),
        ({"qty": "0.001"}, 403, 40310000, "minimal amount of order 1"),
        ({"qty": "100000"}, 403, 40310000, "insufficient buying power"),
        ({"extended_hours": True}, 422, 42210000, "extended hours order must be DAY or GTC limit orders"),
        ({"client_order_id": "x" * 129}, 422, 40010001, "no more than 128"),
        ({"order_class": "bracket"}, 422, 40010001, "bracket orders require take_profit.limit_price"),
        ({"side": "sell", "qty": "0.5"}, 422, 42210000, "fractional orders cannot be sold short"),
    ],
)
def test_invalid_orders_are_rejected(
    client: Client, order: dict[str, Any], status: int, code: int, message: str
) -> None:
    answer = client.buy(**{"status": status, **order})
    assert answer["code"] == code
    assert message in answer["message"]
    assert client("GET", "/v2/orders", params={"status": "all"}) == []


def test_price_below_a_dollar_has_four_decimals(client: Client) -> None:
    assert client.buy(type="limit", limit_price="0.1234")["limit_price"] == "0.1234"


@pytest.mark.parametrize("code", [40010001, 42210000])
def test_client_order_id_is_unique_even_after_a_cancel(start_server: StartServer, code: int) -> None:
    client = start_server(Settings(partial=0.0, duplicate_code=code))
    order = client.buy(client_order_id="mine")
    client("DELETE", f"/v2/orders/{order['id']}", 204)
    assert client.order(order)["status"] == "canceled"
    answer = client.buy(client_order_id="mine", status=422)
    assert answer == {"code": code, "message": "client_order_id must be unique"}


def test_open_purchases_reserve_buying_power_until_cancelled(start_server: StartServer) -> None:
    client = start_server(Settings(partial=0.0, multiplier=1))
    price = Decimal(client("GET", "/v2/stocks/trades/latest?symbols=AAA")["trades"]["AAA"]["p"]).quantize(
        Decimal("0.01")
    )
    order = client.buy(qty="600")
    power = Decimal(client("GET", "/v2/account")["buying_power"])
    assert power == 100_000 - 600 * price
    answer = client.buy(qty="600", status=403)
    assert Decimal(answer["buying_power"]) == power
    assert Decimal(answer["cost_basis"]) == 600 * price
    client("DELETE", f"/v2/orders/{order['id']}", 204)
    assert Decimal(client("GET", "/v2/account")["buying_power"]) == 100_000


def buy_and_fill(client: Client, qty: str = "10") -> None:
    client.buy(qty=qty)
    client.server.jump(new_york("2024-03-01 10:00"))


def test_shares_of_an_open_sale_are_held(client: Client) -> None:
    buy_and_fill(client)
    client.buy(side="sell", qty="7", type="limit", limit_price="900")
    answer = client.buy(side="sell", qty="5", status=403)
    assert (answer["available"], answer["existing_qty"], answer["held_for_orders"]) == ("3", "10", "7")
    assert client("GET", "/v2/positions/AAA")["qty_available"] == "3"


def test_order_against_an_open_order_is_a_wash_trade(client: Client) -> None:
    buy_and_fill(client)
    sale = client.buy(side="sell", qty="10", type="limit", limit_price="900")
    answer = client.buy(status=403)
    assert "potential wash trade" in answer["message"]
    assert answer["existing_order_id"] == sale["id"]
    # Two limits that cannot cross are not a wash trade.
    client.buy(type="limit", limit_price="20")


def test_short_sales_and_covering(client: Client) -> None:
    client.buy(side="sell", qty="10")
    client.server.jump(new_york("2024-03-01 10:00"))
    position = client("GET", "/v2/positions/AAA")
    assert (position["qty"], position["side"]) == ("-10", "short")
    client.buy(qty="10")
    client.server.jump(new_york("2024-03-01 10:01"))
    assert client("GET", "/v2/positions") == []


def test_partial_fills_add_up_and_do_not_depend_on_other_orders(start_server: StartServer) -> None:
    def fills(ids: list[str]) -> dict[str, list[str]]:
        client = start_server(Settings(partial=0.6, seed=3))
        for name in ids:
            client.buy(client_order_id=name)
        client.server.jump(new_york("2024-03-01 16:00"))
        found: dict[str, list[str]] = {}
        for record in client.server.log.records:
            if record["kind"] == "order" and "qty" in record:
                found.setdefault(record["order"]["client_order_id"], []).append(record["qty"])
        return found

    names = [f"order-{i}" for i in range(12)]
    forward, backward = fills(names), fills(names[::-1])
    assert forward == backward
    assert {sum(map(int, parts)) for parts in forward.values()} == {10}
    assert {len(parts) for parts in forward.values()} == {1, 2}


def test_fill_comes_before_a_pending_cancel(client: Client) -> None:
    client.server.jump(new_york("2024-03-01 10:00"))
    conditions = client.server.exchange.conditions
    conditions.fill_delay, conditions.cancel_delay = 5.0, 10.0
    order = client.buy()
    client.server.jump(new_york("2024-03-01 10:00:01"))
    client("DELETE", f"/v2/orders/{order['id']}", 204)
    assert client.order(order)["status"] == "pending_cancel"
    client.server.jump(new_york("2024-03-01 10:01"))
    assert client.order(order)["status"] == "filled"
    answer = client("DELETE", f"/v2/orders/{order['id']}", 422)
    assert 'already in "filled" state' in answer["message"]
    assert client("GET", "/v2/positions/AAA")["qty"] == "10"


def test_cancel_keeps_the_filled_part(start_server: StartServer) -> None:
    client = start_server(Settings(partial=1.0, partial_gap=3600.0, seed=1), start=new_york("2024-03-01 10:00"))
    order = client.buy(qty="100")
    client.server.jump(new_york("2024-03-01 10:00:01"))
    filled = client.order(order)["filled_qty"]
    assert client.order(order)["status"] == "partially_filled"
    client("DELETE", f"/v2/orders/{order['id']}", 204)
    client.server.jump(new_york("2024-03-01 16:00"))
    order = client.order(order)
    assert (order["status"], order["filled_qty"]) == ("canceled", filled)
    assert client("GET", "/v2/positions/AAA")["qty"] == filled


def test_replacement_links_old_and_new_order(client: Client) -> None:
    client.server.jump(new_york("2024-03-01 10:00"))
    old = client.buy(type="limit", limit_price="20")
    client.order(old)
    new = client(
        "PATCH", f"/v2/orders/{old['id']}", json={"qty": "4", "limit_price": "21", "client_order_id": "second"}
    )
    assert new["id"] != old["id"]
    old, new = client.order(old), client.order(new)
    assert (old["status"], old["replaced_by"]) == ("replaced", new["id"])
    assert (new["status"], new["replaces"], new["qty"], new["limit_price"]) == ("new", old["id"], "4", "21")
    for zero in ({"qty": "0"}, {"limit_price": "0"}):
        assert client("PATCH", f"/v2/orders/{new['id']}", 422, json=zero)


def test_replacement_after_the_fill_is_rejected(client: Client) -> None:
    client.server.jump(new_york("2024-03-01 10:00"))
    client.server.exchange.conditions.fill_delay = 5.0
    client.server.exchange.conditions.replace_delay = 10.0
    old = client.buy()
    client.server.jump(new_york("2024-03-01 10:00:01"))
    new = client("PATCH", f"/v2/orders/{old['id']}", json={"qty": "4"})
    refused = client("DELETE", f"/v2/orders/{old['id']}", 422)
    assert "pending_replace" in refused["message"]
    client.server.jump(new_york("2024-03-01 10:01"))
    assert client.order(old)["status"] == "filled"
    assert client.order(new)["status"] == "rejected"
    assert client("GET", "/v2/positions/AAA")["qty"] == "10"


def test_accepted_order_cannot_be_replaced(client: Client) -> None:
    order = client.buy()
    assert "accepted" in client("PATCH", f"/v2/orders/{order['id']}", 422, json={"qty": "4"})["message"]


def test_cancel_all_responds_with_one_entry_per_order(client: Client) -> None:
    orders = [client.buy(symbol=s) for s in ("AAA", "BBB")]
    answer = client("DELETE", "/v2/orders", 207)
    assert [(entry["id"], entry["status"]) for entry in answer] == [(o["id"], 200) for o in orders]
    assert client("GET", "/v2/orders") == []


def test_positions_are_closed_by_market_orders(client: Client) -> None:
    buy_and_fill(client)
    answer = client("DELETE", "/v2/positions?cancel_orders=true", 207)
    assert [(entry["symbol"], entry["status"]) for entry in answer] == [("AAA", 200)]
    client.server.jump(new_york("2024-03-01 10:01"))
    assert client("GET", "/v2/positions") == []
    assert client("GET", "/v2/positions/AAA", 404)["code"] == 40410000


def test_halted_symbol_does_not_fill_and_an_untradable_one_is_refused(client: Client) -> None:
    client("POST", "/fake/conditions", json={"halted": ["AAA"], "untradable": ["BBB"]})
    order = client.buy()
    assert "not tradable" in client.buy(symbol="BBB", status=422)["message"]
    assert client("GET", "/v2/assets/BBB")["tradable"] is False
    client.server.jump(new_york("2024-03-01 12:00"))
    assert client.order(order)["status"] == "new"
    client("POST", "/fake/conditions", json={"halted": []})
    client.server.jump(new_york("2024-03-01 12:01"))
    assert client.order(order)["status"] == "filled"


def test_fractions_of_a_symbol_that_trades_whole_shares_are_refused(client: Client) -> None:
    client("POST", "/fake/conditions", json={"whole_shares": ["BBB"]})
    assert "not fractionable" in client.buy(symbol="BBB", qty="1.5", status=403)["message"]
    assert client.buy(symbol="BBB", qty="2")["qty"] == "2"
    assert [client("GET", f"/v2/assets/{s}")["fractionable"] for s in ("AAA", "BBB")] == [True, False]


def test_halt_cancels_auction_orders_and_a_fill_delay_postpones_fills(client: Client) -> None:
    halted = client.buy(time_in_force="opg")
    late = client.buy(symbol="BBB", time_in_force="opg")
    client("POST", "/fake/conditions", json={"halted": ["AAA"], "fill_delay": 300})
    client.server.jump(new_york("2024-03-01 09:31"))
    assert client.order(halted)["status"] == "canceled"
    assert client.order(late)["status"] == "new"
    client.server.jump(new_york("2024-03-01 09:35"))
    late = client.order(late)
    assert late["status"] == "filled"
    query = "symbols=BBB&timeframe=1Day&start=2024-03-01"
    bar = client("GET", f"/v2/stocks/bars?{query}")["bars"]["BBB"][-1]
    assert float(late["filled_avg_price"]) == bar["o"]


def test_day_trading_rule_refuses_the_fourth_day_trade_of_a_small_account(start_server: StartServer) -> None:
    settings = Settings(partial=0.0, cash=Decimal(10_000), day_trading_rule=True)
    client = start_server(settings, start=new_york("2024-03-01 10:00"))
    for i in range(4):
        assert client("GET", "/v2/account")["daytrade_count"] == i
        client.buy(qty="1")
        client.server.jump(new_york(f"2024-03-01 10:{10 + 10 * i}"))
        response = client.buy(side="sell", qty="1", status=200 if i < 3 else 403)
        client.server.jump(new_york(f"2024-03-01 10:{15 + 10 * i}"))
    assert response["code"] == 40310100
    client.server.jump(new_york("2024-03-04 10:00"))
    client.buy(side="sell", qty="1")  # bought on another day
    client.server.jump(new_york("2024-03-08 10:00"))
    assert client("GET", "/v2/account")["daytrade_count"] == 0


def test_suspended_account_rejects_orders(client: Client) -> None:
    client("POST", "/fake/conditions", json={"suspended": True})
    assert client.buy(status=403)["message"] == "new orders are rejected by user request"
    assert client("GET", "/v2/account")["trade_suspended_by_user"] is True


def test_fees_are_booked_as_activities(start_server: StartServer) -> None:
    client = start_server(Settings(partial=0.0, cost_bps=Decimal(10)))
    client.buy(time_in_force="opg")
    client.server.jump(new_york("2024-03-01 09:30"))
    fill, fee = client("GET", "/v2/account/activities", params={"direction": "asc"})
    assert (fill["activity_type"], fee["activity_type"]) == ("FILL", "FEE")
    value = 10 * Decimal(fill["price"])
    assert Decimal(fee["net_amount"]) == -value / 1000
    assert Decimal(client("GET", "/v2/account")["cash"]) == 100_000 - value - value / 1000
