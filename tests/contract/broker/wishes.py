"""Orders to send, and what a test looks for in the answers."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from finrl_pod.paper.records import Confirmed, Order, OrderRequest, OrderType, Reason, Rejected, Side, TimeInForce
from tests.contract.broker_worlds import World

DAY = date(2024, 3, 1)


def wish(
    name: str = "run-1", symbol: str = "AAA", side: str = "buy", quantity: str = "10", tif: str = "opg", limit: str = ""
) -> OrderRequest:
    kind, price = (OrderType.LIMIT, Decimal(limit)) if limit else (OrderType.MARKET, None)
    return OrderRequest(name, symbol, Side(side), Decimal(quantity), TimeInForce(tif), kind, price)


def sent(here: World, request: OrderRequest) -> Order:
    outcome = here.broker.submit(request)
    assert isinstance(outcome, Confirmed), outcome
    assert outcome.order is not None
    return outcome.order


def refused(outcome: object) -> Reason:
    assert isinstance(outcome, Rejected), outcome
    assert outcome.message
    return outcome.reason


def open_price(here: World, symbol: str = "AAA", day: date = DAY) -> Decimal:
    table = here.feed.bars([symbol], day, day, "raw")
    return Decimal(repr(float(table.open[0, 0])))
