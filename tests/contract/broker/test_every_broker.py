"""What every broker must do."""

from __future__ import annotations

from datetime import UTC, date
from decimal import Decimal

import pytest

from finrl_pod.paper.brokers.port import Broker, DataFeed
from finrl_pod.paper.records import (
    Confirmed,
    OrderStatus,
    Reason,
    Rejected,
    Side,
)
from tests.contract.broker.wishes import DAY, open_price, refused, sent, wish
from tests.contract.broker_worlds import World, new_york

# alpaca-py's own imports, hidden from users as every DeprecationWarning of a library is.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_the_ports_are_met(here: World) -> None:
    assert isinstance(here.broker, Broker)
    assert isinstance(here.feed, DataFeed)


def test_a_new_account_holds_cash_alone(here: World) -> None:
    account = here.broker.account()
    assert (account.cash, account.equity, account.currency) == (Decimal(100_000), Decimal(100_000), "USD")
    assert account.id
    assert account.buying_power >= account.cash
    assert here.broker.positions() == ()
    assert here.broker.orders("all") == ()
    assert here.broker.fills_since(None).fills == ()


def test_an_order_fills_in_the_opening_auction(here: World) -> None:
    order = sent(here, wish())
    assert order.live
    assert (order.client_order_id, order.symbol, order.side, order.quantity) == ("run-1", "AAA", Side.BUY, 10)
    assert order.filled_quantity == 0
    here.jump("2024-03-01 16:30")
    found = here.broker.order(order.id)
    assert found is not None
    price = open_price(here)
    assert (found.status, found.filled_quantity, found.filled_average_price) == (OrderStatus.FILLED, 10, price)
    (position,) = here.broker.positions()
    assert (position.symbol, position.quantity) == ("AAA", 10)
    assert here.broker.account().cash == 100_000 - 10 * price


def test_one_name_makes_one_order(here: World) -> None:
    order = sent(here, wish())
    assert refused(here.broker.submit(wish())) is Reason.DUPLICATE_ID
    here.broker.cancel(order.id)
    assert refused(here.broker.submit(wish(quantity="3"))) is Reason.DUPLICATE_ID
    found = here.broker.order_by_client_id("run-1")
    assert found is not None
    assert (found.id, found.status) == (order.id, OrderStatus.CANCELED)
    assert len(here.broker.orders("all")) == 1


def test_what_is_not_there_is_none(here: World) -> None:
    assert here.broker.order_by_client_id("never-sent") is None
    assert here.broker.order("00000000-0000-0000-0000-000000000000") is None


def test_a_cancelled_order_does_not_fill(here: World) -> None:
    order = sent(here, wish())
    assert isinstance(here.broker.cancel(order.id), Confirmed)
    here.jump("2024-03-01 16:30")
    found = here.broker.order(order.id)
    assert found is not None
    assert (found.status, found.live, found.filled_quantity) == (OrderStatus.CANCELED, False, 0)
    assert here.broker.positions() == ()


def test_a_filled_order_cannot_be_cancelled(here: World) -> None:
    order = sent(here, wish())
    here.jump("2024-03-01 16:30")
    assert refused(here.broker.cancel(order.id)) is Reason.NOT_CANCELABLE
    assert refused(here.broker.cancel("00000000-0000-0000-0000-000000000000")) is Reason.NOT_FOUND


def test_fills_come_once_after_their_cursor(here: World) -> None:
    first = sent(here, wish())
    here.jump("2024-03-01 16:30")
    page = here.broker.fills_since(None)
    assert [(f.order_id, f.symbol, f.side, f.quantity, f.cumulative_quantity) for f in page.fills] == [
        (first.id, "AAA", Side.BUY, 10, 10)
    ]
    assert page.fills[0].price == open_price(here)
    assert page.fills[0].time == new_york("2024-03-01 09:30").astimezone(UTC)
    assert here.broker.fills_since(page.cursor).fills == ()
    here.jump("2024-03-04 08:00")
    second = sent(here, wish("run-2", side="sell", quantity="4"))
    here.jump("2024-03-04 16:30")
    later = here.broker.fills_since(page.cursor)
    assert [(f.order_id, f.side, f.quantity) for f in later.fills] == [(second.id, Side.SELL, 4)]
    whole = here.broker.fills_since(None).fills
    assert whole == page.fills + later.fills
    assert len({f.id for f in whole}) == 2


def test_orders_are_listed_oldest_first(here: World) -> None:
    ids = [sent(here, wish(f"run-{i}", symbol=s)).id for i, s in enumerate(("AAA", "BBB", "CCC"))]
    here.broker.cancel(ids[1])
    assert [o.id for o in here.broker.orders("all")] == ids
    assert [o.id for o in here.broker.orders("open")] == [ids[0], ids[2]]
    here.jump("2024-03-01 08:10")
    last = sent(here, wish("run-9", symbol="BBB"))
    assert [o.id for o in here.broker.orders("all", after=new_york("2024-03-01 08:05"))] == [last.id]


def test_a_limit_that_the_open_does_not_meet_ends_unfilled(here: World) -> None:
    order = sent(here, wish(limit="5.00"))
    here.jump("2024-03-01 16:30")
    found = here.broker.order(order.id)
    assert found is not None
    assert not found.live
    assert found.filled_quantity == 0
    assert found.limit_price == Decimal("5.00")


def test_fractions_are_bought_with_a_day_order(here: World) -> None:
    order = sent(here, wish(quantity="1.234567891", tif="day"))
    here.jump("2024-03-01 16:30")
    found = here.broker.order(order.id)
    assert found is not None
    assert found.filled_quantity == Decimal("1.234567891")
    assert here.broker.positions()[0].quantity == Decimal("1.234567891")
    assert refused(here.broker.submit(wish("run-2", quantity="0.5", tif="opg"))) is Reason.INVALID


def test_an_order_for_the_close_fills_at_the_close(here: World) -> None:
    order = sent(here, wish(tif="cls"))
    here.jump("2024-03-01 16:30")
    found = here.broker.order(order.id)
    assert found is not None
    close = float(here.feed.bars(["AAA"], DAY, DAY, "raw").close[0, 0])
    assert found.filled_average_price == Decimal(repr(close))


def test_auction_orders_that_come_too_late_are_refused(here: World) -> None:
    here.jump("2024-03-01 09:28")
    assert refused(here.broker.submit(wish())) is Reason.INVALID
    here.jump("2024-03-01 15:50")
    assert refused(here.broker.submit(wish("run-2", tif="cls"))) is Reason.INVALID


def test_an_unknown_symbol_is_invalid(here: World) -> None:
    assert refused(here.broker.submit(wish(symbol="ZZZZ"))) is Reason.INVALID
    assert here.broker.order_by_client_id("run-1") is None


def test_shares_bound_by_another_sale_are_not_sold_twice(here: World) -> None:
    sent(here, wish())
    here.jump("2024-03-04 08:00")
    sent(here, wish("run-2", side="sell", quantity="7"))
    assert refused(here.broker.submit(wish("run-3", side="sell", quantity="5"))) is Reason.HELD_FOR_ORDERS


def test_orders_against_each_other_are_a_wash_trade(here: World) -> None:
    sent(here, wish())
    here.jump("2024-03-04 08:00")
    sale = sent(here, wish("run-2", side="sell"))
    outcome = here.broker.submit(wish("run-3"))
    assert refused(outcome) is Reason.WASH_TRADE
    assert isinstance(outcome, Rejected)
    assert outcome.blocking_order_id in (None, sale.id)


def test_assets_leave_out_what_the_broker_does_not_know(here: World) -> None:
    found = here.broker.assets(["AAA", "ZZZZ", "CCC"])
    assert set(found) == {"AAA", "CCC"}
    assert found["AAA"].tradable
    assert set(here.broker.assets(["AAA", "BBB", *(f"Z{i}" for i in range(12))])) == {"AAA", "BBB"}


def test_clock_and_calendar(here: World) -> None:
    clock = here.broker.clock()
    assert clock.now == new_york("2024-03-01 08:00")
    assert not clock.is_open
    assert clock.next_open == new_york("2024-03-01 09:30")
    days = here.broker.calendar(date(2024, 3, 8), date(2024, 3, 11))
    assert [d.date for d in days] == [date(2024, 3, 8), date(2024, 3, 11)]
    # The clocks change in between.
    assert [d.open.astimezone(UTC).hour for d in days] == [14, 13]
    (half,) = here.broker.calendar(date(2024, 7, 3), date(2024, 7, 4))
    assert half.close == new_york("2024-07-03 13:00")


def test_bars_are_those_of_complete_sessions(here: World) -> None:
    def days() -> list[str]:
        table = here.feed.bars(["BBB", "AAA"], date(2024, 2, 28), date(2024, 3, 31), "all")
        assert table.symbols == ("BBB", "AAA")
        assert table.close.shape == (len(table.times), 2)
        return [str(t)[:10] for t in table.times]

    assert days() == ["2024-02-28", "2024-02-29"]
    here.jump("2024-03-01 12:00")
    assert days() == ["2024-02-28", "2024-02-29"]
    here.jump("2024-03-01 16:00")
    assert days() == ["2024-02-28", "2024-02-29", "2024-03-01"]


def test_the_latest_price_is_the_last_close_before_the_open(here: World) -> None:
    table = here.feed.bars(["AAA"], date(2024, 2, 29), date(2024, 2, 29), "raw")
    price, at = here.feed.latest(["AAA"])["AAA"]
    assert float(price) == pytest.approx(float(table.close[0, 0]), rel=1e-9)
    assert at == new_york("2024-02-29 16:00")
