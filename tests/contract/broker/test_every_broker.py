"""Contract of every broker."""

from __future__ import annotations

from datetime import UTC, date
from decimal import Decimal

import pytest

from finrl_pod.paper.domain.port import Broker, DataFeed
from finrl_pod.paper.domain.records import (
    Confirmed,
    OrderStatus,
    Reason,
    Side,
)
from tests.contract.broker.order_requests import DAY, open_price, order_request, rejection_reason, submit
from tests.contract.broker_setups import BrokerSetup, new_york

# Raised by alpaca-py's own imports.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_protocols_are_satisfied(setup: BrokerSetup) -> None:
    assert isinstance(setup.broker, Broker)
    assert isinstance(setup.feed, DataFeed)


def test_new_account_holds_only_cash(setup: BrokerSetup) -> None:
    account = setup.broker.account()
    assert (account.cash, account.equity) == (Decimal(100_000), Decimal(100_000))
    assert account.id
    assert account.buying_power >= account.cash
    assert setup.broker.positions() == ()
    assert setup.broker.orders("all") == ()
    assert setup.broker.fills_since(None).fills == ()


def test_order_fills_in_the_opening_auction(setup: BrokerSetup) -> None:
    order = submit(setup, order_request())
    assert order.live
    assert (order.client_order_id, order.symbol, order.side, order.quantity) == ("run-1", "AAA", Side.BUY, 10)
    assert order.filled_quantity == 0
    setup.jump("2024-03-01 16:30")
    found = setup.broker.order(order.id)
    assert found is not None
    price = open_price(setup)
    assert (found.status, found.filled_quantity, found.filled_average_price) == (OrderStatus.FILLED, 10, price)
    (position,) = setup.broker.positions()
    assert (position.symbol, position.quantity) == ("AAA", 10)
    assert setup.broker.account().cash == 100_000 - 10 * price


def test_client_order_id_can_be_used_once(setup: BrokerSetup) -> None:
    order = submit(setup, order_request())
    assert rejection_reason(setup.broker.submit(order_request())) is Reason.DUPLICATE_ID
    setup.broker.cancel(order.id)
    assert rejection_reason(setup.broker.submit(order_request(quantity="3"))) is Reason.DUPLICATE_ID
    found = setup.broker.order_by_client_id("run-1")
    assert found is not None
    assert (found.id, found.status) == (order.id, OrderStatus.CANCELED)
    assert len(setup.broker.orders("all")) == 1


def test_unknown_orders_are_none(setup: BrokerSetup) -> None:
    assert setup.broker.order_by_client_id("never-sent") is None
    assert setup.broker.order("00000000-0000-0000-0000-000000000000") is None


def test_cancelled_order_does_not_fill(setup: BrokerSetup) -> None:
    order = submit(setup, order_request())
    assert isinstance(setup.broker.cancel(order.id), Confirmed)
    setup.jump("2024-03-01 16:30")
    found = setup.broker.order(order.id)
    assert found is not None
    assert (found.status, found.live, found.filled_quantity) == (OrderStatus.CANCELED, False, 0)
    assert setup.broker.positions() == ()


def test_filled_order_cannot_be_cancelled(setup: BrokerSetup) -> None:
    order = submit(setup, order_request())
    setup.jump("2024-03-01 16:30")
    assert rejection_reason(setup.broker.cancel(order.id)) is Reason.NOT_CANCELABLE
    assert rejection_reason(setup.broker.cancel("00000000-0000-0000-0000-000000000000")) is Reason.NOT_FOUND


def test_fills_are_returned_after_their_cursor(setup: BrokerSetup) -> None:
    first = submit(setup, order_request())
    setup.jump("2024-03-01 16:30")
    page = setup.broker.fills_since(None)
    assert [(f.order_id, f.symbol, f.side, f.quantity, f.cumulative_quantity) for f in page.fills] == [
        (first.id, "AAA", Side.BUY, 10, 10)
    ]
    assert page.fills[0].price == open_price(setup)
    assert page.fills[0].time == new_york("2024-03-01 09:30").astimezone(UTC)
    assert setup.broker.fills_since(page.cursor).fills == ()
    setup.jump("2024-03-04 08:00")
    second = submit(setup, order_request("run-2", side="sell", quantity="4"))
    setup.jump("2024-03-04 16:30")
    later = setup.broker.fills_since(page.cursor)
    assert [(f.order_id, f.side, f.quantity) for f in later.fills] == [(second.id, Side.SELL, 4)]
    all_fills = setup.broker.fills_since(None).fills
    assert all_fills == page.fills + later.fills
    assert len({f.id for f in all_fills}) == 2


def test_orders_are_listed_oldest_first(setup: BrokerSetup) -> None:
    ids = [submit(setup, order_request(f"run-{i}", symbol=s)).id for i, s in enumerate(("AAA", "BBB", "CCC"))]
    setup.broker.cancel(ids[1])
    assert [o.id for o in setup.broker.orders("all")] == ids
    assert [o.id for o in setup.broker.orders("open")] == [ids[0], ids[2]]
    setup.jump("2024-03-01 08:10")
    last = submit(setup, order_request("run-9", symbol="BBB"))
    assert [o.id for o in setup.broker.orders("all", after=new_york("2024-03-01 08:05"))] == [last.id]


def test_opg_limit_order_outside_its_limit_ends_unfilled(setup: BrokerSetup) -> None:
    order = submit(setup, order_request(limit="5.00"))
    setup.jump("2024-03-01 16:30")
    found = setup.broker.order(order.id)
    assert found is not None
    assert not found.live
    assert found.filled_quantity == 0
    assert found.limit_price == Decimal("5.00")


def test_fractional_shares_need_day_orders(setup: BrokerSetup) -> None:
    order = submit(setup, order_request(quantity="1.234567891", tif="day"))
    setup.jump("2024-03-01 16:30")
    found = setup.broker.order(order.id)
    assert found is not None
    assert found.filled_quantity == Decimal("1.234567891")
    assert setup.broker.positions()[0].quantity == Decimal("1.234567891")
    assert rejection_reason(setup.broker.submit(order_request("run-2", quantity="0.5", tif="opg"))) is Reason.INVALID


def test_cls_order_fills_at_the_close(setup: BrokerSetup) -> None:
    order = submit(setup, order_request(tif="cls"))
    setup.jump("2024-03-01 16:30")
    found = setup.broker.order(order.id)
    assert found is not None
    close = float(setup.feed.bars(["AAA"], DAY, DAY, "raw").close[0, 0])
    assert found.filled_average_price == Decimal(repr(close))


def test_late_auction_orders_are_rejected(setup: BrokerSetup) -> None:
    setup.jump("2024-03-01 09:28")
    assert rejection_reason(setup.broker.submit(order_request())) is Reason.INVALID
    setup.jump("2024-03-01 15:50")
    assert rejection_reason(setup.broker.submit(order_request("run-2", tif="cls"))) is Reason.INVALID


def test_unknown_symbol_is_invalid(setup: BrokerSetup) -> None:
    assert rejection_reason(setup.broker.submit(order_request(symbol="ZZZZ"))) is Reason.INVALID
    assert setup.broker.order_by_client_id("run-1") is None


def test_shares_held_for_another_sale_cannot_be_sold(setup: BrokerSetup) -> None:
    submit(setup, order_request())
    setup.jump("2024-03-04 08:00")
    submit(setup, order_request("run-2", side="sell", quantity="7"))
    outcome = setup.broker.submit(order_request("run-3", side="sell", quantity="5"))
    assert rejection_reason(outcome) is Reason.HELD_FOR_ORDERS


def test_opposite_orders_are_a_wash_trade(setup: BrokerSetup) -> None:
    submit(setup, order_request())
    setup.jump("2024-03-04 08:00")
    submit(setup, order_request("run-2", side="sell"))
    assert rejection_reason(setup.broker.submit(order_request("run-3"))) is Reason.WASH_TRADE


def test_unknown_assets_are_left_out(setup: BrokerSetup) -> None:
    found = setup.broker.assets(["AAA", "ZZZZ", "CCC"])
    assert set(found) == {"AAA", "CCC"}
    assert found["AAA"].tradable
    assert set(setup.broker.assets(["AAA", "BBB", *(f"Z{i}" for i in range(12))])) == {"AAA", "BBB"}


def test_clock_and_calendar(setup: BrokerSetup) -> None:
    assert setup.broker.clock() == new_york("2024-03-01 08:00")
    days = setup.broker.calendar(date(2024, 3, 8), date(2024, 3, 11))
    assert [d.date for d in days] == [date(2024, 3, 8), date(2024, 3, 11)]
    # Daylight saving time starts in between.
    assert [d.open.astimezone(UTC).hour for d in days] == [14, 13]
    (half,) = setup.broker.calendar(date(2024, 7, 3), date(2024, 7, 4))
    assert half.close == new_york("2024-07-03 13:00")


def test_bars_cover_complete_sessions_only(setup: BrokerSetup) -> None:
    def days() -> list[str]:
        table = setup.feed.bars(["BBB", "AAA"], date(2024, 2, 28), date(2024, 3, 31), "all")
        assert table.symbols == ("BBB", "AAA")
        assert table.close.shape == (len(table.times), 2)
        return [str(t)[:10] for t in table.times]

    assert days() == ["2024-02-28", "2024-02-29"]
    setup.jump("2024-03-01 12:00")
    assert days() == ["2024-02-28", "2024-02-29"]
    setup.jump("2024-03-01 16:00")
    assert days() == ["2024-02-28", "2024-02-29", "2024-03-01"]


def test_latest_price_is_the_last_close_before_the_open(setup: BrokerSetup) -> None:
    table = setup.feed.bars(["AAA"], date(2024, 2, 29), date(2024, 2, 29), "raw")
    price, at = setup.feed.latest(["AAA"])["AAA"]
    assert float(price) == pytest.approx(float(table.close[0, 0]), rel=1e-9)
    assert at == new_york("2024-02-29 16:00")
