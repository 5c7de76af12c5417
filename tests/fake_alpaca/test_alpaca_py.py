"""Conformance: Alpaca's own client library works against the server through its URL override."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from finrl_pod.fake_alpaca.settings import CorporateAction, Settings
from tests.fake_alpaca.server_fixtures import Client, StartServer, new_york, wait_until

pytestmark = [
    # Raised by alpaca-py's own imports.
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*legacy:DeprecationWarning"),
]


@pytest.fixture
def served(start_server: StartServer) -> Client:
    actions = (
        CorporateAction("AAA", "2024-03-05", new=4, old=1),
        CorporateAction("BBB", "2024-03-05", "dividend", cash=1),
    )
    return start_server(Settings(partial=0.0, actions=actions))


@pytest.fixture
def trading(served: Client) -> Any:
    from alpaca.trading.client import TradingClient

    return TradingClient("key", "secret", paper=True, url_override=served.server.url)


def order_request(symbol: str = "AAA", qty: float = 10, side: str = "buy", tif: str = "opg", **more: Any) -> Any:
    from alpaca.trading.enums import OrderSide, TimeInForce
    from alpaca.trading.requests import LimitOrderRequest, MarketOrderRequest

    make = LimitOrderRequest if "limit_price" in more else MarketOrderRequest
    return make(symbol=symbol, qty=qty, side=OrderSide(side), time_in_force=TimeInForce(tif), **more)


def test_account_clock_calendar_and_assets(trading: Any) -> None:
    from alpaca.trading.requests import GetCalendarRequest

    account = trading.get_account()
    assert (account.cash, account.buying_power, account.currency) == ("100000", "200000", "USD")
    assert trading.get_clock().is_open is False
    days = trading.get_calendar(GetCalendarRequest(start=datetime(2024, 7, 3).date(), end=datetime(2024, 7, 5).date()))
    assert [(d.open.hour, d.close.hour) for d in days] == [(9, 13), (9, 16)]
    assert [a.symbol for a in trading.get_all_assets()] == ["AAA", "BBB", "CCC"]
    assert trading.get_asset("AAA").fractionable is True


def test_submit_find_cancel_and_close(served: Client, trading: Any) -> None:
    from alpaca.trading.enums import OrderStatus, QueryOrderStatus
    from alpaca.trading.requests import GetOrdersRequest

    order = trading.submit_order(order_request(client_order_id="mine"))
    assert order.status is OrderStatus.ACCEPTED
    assert trading.get_order_by_client_id("mine").id == order.id
    served.server.jump(new_york("2024-03-01 10:00"))
    assert trading.get_order_by_id(order.id).status is OrderStatus.FILLED
    assert trading.get_open_position("AAA").qty == "10"
    waiting = trading.submit_order(order_request("BBB", tif="day", limit_price=20.0))
    assert [o.id for o in trading.get_orders(GetOrdersRequest(status=QueryOrderStatus.OPEN))] == [waiting.id]
    trading.cancel_order_by_id(waiting.id)
    assert trading.get_order_by_id(waiting.id).status is OrderStatus.CANCELED
    (closed,) = trading.close_all_positions(cancel_orders=True)
    assert closed.status == 200
    served.server.jump(new_york("2024-03-01 10:01"))
    assert trading.get_all_positions() == []


def test_bracket_order_and_portfolio_history(served: Client, trading: Any) -> None:
    from alpaca.trading.enums import OrderClass, OrderStatus
    from alpaca.trading.requests import GetOrdersRequest, StopLossRequest, TakeProfitRequest

    exits = {"take_profit": TakeProfitRequest(limit_price=100000), "stop_loss": StopLossRequest(stop_price=0.5)}
    order = trading.submit_order(order_request(tif="gtc", order_class=OrderClass.BRACKET, **exits))
    served.server.jump(new_york("2024-03-01 17:00"))
    assert trading.get_order_by_id(order.id).status is OrderStatus.FILLED
    assert [leg.status for leg in trading.get_order_by_id(order.id).legs] == [OrderStatus.NEW, OrderStatus.HELD]
    assert [o.id for o in trading.get_orders(GetOrdersRequest(status="all", nested=True))] == [order.id]
    assert len(trading.get_orders(GetOrdersRequest(status="all"))) == 3
    assert trading.get_portfolio_history().equity == [float(trading.get_account().last_equity)]


def test_replacing_an_order(served: Client, trading: Any) -> None:
    from alpaca.trading.requests import ReplaceOrderRequest

    served.server.jump(new_york("2024-03-01 10:00"))
    order = trading.submit_order(order_request(tif="day", limit_price=20.0))
    trading.get_order_by_id(order.id)
    new = trading.replace_order_by_id(order.id, ReplaceOrderRequest(qty=4, limit_price=21.0))
    assert (new.replaces, new.qty) == (order.id, "4")


def test_errors_carry_alpacas_codes(trading: Any) -> None:
    from alpaca.common.exceptions import APIError

    trading.submit_order(order_request(client_order_id="mine"))
    errors = {}
    for name, order in {
        "duplicate": order_request(client_order_id="mine"),
        "money": order_request(qty=1e6),
        "symbol": order_request("ZZZ"),
    }.items():
        with pytest.raises(APIError) as caught:
            trading.submit_order(order)
        errors[name] = (caught.value.status_code, caught.value.code)
    assert errors == {"duplicate": (422, 40010001), "money": (403, 40310000), "symbol": (422, 42210000)}


def test_bars_latest_prices_and_corporate_actions(served: Client) -> None:
    from alpaca.data.historical import StockHistoricalDataClient
    from alpaca.data.historical.corporate_actions import CorporateActionsClient
    from alpaca.data.requests import (
        CorporateActionsRequest,
        StockBarsRequest,
        StockLatestQuoteRequest,
        StockLatestTradeRequest,
    )
    from alpaca.data.timeframe import TimeFrame

    url = served.server.url
    data = StockHistoricalDataClient("key", "secret", url_override=url)
    request = StockBarsRequest(symbol_or_symbols=["AAA", "BBB"], timeframe=TimeFrame.Day, start=datetime(2024, 2, 1))
    found = data.get_stock_bars(request)
    assert {symbol: len(bars) for symbol, bars in found.data.items()} == {"AAA": 20, "BBB": 20}
    assert data.get_stock_latest_trade(StockLatestTradeRequest(symbol_or_symbols="AAA"))["AAA"].price > 0
    quote = data.get_stock_latest_quote(StockLatestQuoteRequest(symbol_or_symbols="AAA"))["AAA"]
    assert 0 < quote.bid_price < quote.ask_price
    actions = CorporateActionsClient("key", "secret", url_override=url)
    day = datetime(2024, 3, 5).date()
    announced = actions.get_corporate_actions(CorporateActionsRequest(symbols=["AAA", "BBB"], start=day, end=day))
    assert announced.data["forward_splits"][0].new_rate == 4.0
    assert announced.data["cash_dividends"][0].rate == 1.0


class StreamClient:
    """Alpaca's stream client in a thread, and the updates it received."""

    def __init__(self, url: str) -> None:
        from alpaca.trading.stream import TradingStream

        self.updates: list[Any] = []
        self.stream = TradingStream("key", "secret", url_override=url)

        async def store(update: Any) -> None:
            self.updates.append(update)

        self.stream.subscribe_trade_updates(store)
        self.thread = threading.Thread(target=lambda: asyncio.run(self.stream._run_forever()), daemon=True)
        self.thread.start()


@pytest.fixture
def stream(served: Client) -> Iterator[StreamClient]:
    client = StreamClient(served.server.stream_url)
    wait_until(lambda: any(r.get("what") == "listening" for r in served.server.log.records))
    yield client
    client.stream.stop()
    # The client notices its stop only when a message arrives, or after five seconds.
    served.buy(symbol="CCC", qty="1")
    client.thread.join(timeout=10)


def events(client: StreamClient) -> list[str]:
    return [str(getattr(update.event, "value", update.event)) for update in client.updates]


def test_trade_updates_arrive_in_order(served: Client, trading: Any, stream: StreamClient) -> None:
    trading.submit_order(order_request(client_order_id="mine"))
    served.server.jump(new_york("2024-03-01 10:00"))
    wait_until(lambda: len(stream.updates) >= 3)
    assert events(stream) == ["pending_new", "new", "fill"]
    fill = stream.updates[-1]
    assert (fill.qty, fill.position_qty, fill.order.client_order_id) == (10.0, 10.0, "mine")


def test_stream_messages_can_be_lost_duplicated_and_reordered(
    served: Client, trading: Any, stream: StreamClient
) -> None:
    served.server.faults.add([Fault("lose", event="pending_new"), Fault("hold", event="new", seconds=5.0)])
    served.server.faults.add([Fault("duplicate", event="fill")])
    trading.submit_order(order_request())
    served.server.jump(new_york("2024-03-01 10:00"))
    wait_until(lambda: len(stream.updates) >= 3)
    assert events(stream) == ["fill", "fill", "new"]
    assert stream.updates[0].execution_id == stream.updates[1].execution_id


def test_client_reconnects_after_a_broken_connection(served: Client, trading: Any, stream: StreamClient) -> None:
    stream.stream._reconnect_min_backoff = 0.01
    served.server.faults.add([Fault("disconnect", event="pending_new")])
    trading.submit_order(order_request())
    wait_until(lambda: sum(r.get("what") == "listening" for r in served.server.log.records) == 2)
    served.server.jump(new_york("2024-03-01 10:00"))
    wait_until(lambda: len(stream.updates) >= 2)
    assert events(stream) == ["new", "fill"]
