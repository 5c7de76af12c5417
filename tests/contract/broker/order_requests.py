"""Order requests to submit, and checks of their outcomes."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

from finrl_pod.paper.domain.records import (
    Confirmed,
    Order,
    OrderRequest,
    OrderType,
    Reason,
    Rejected,
    Side,
    TimeInForce,
)
from tests.contract.broker_setups import BrokerSetup

DAY = date(2024, 3, 1)


def order_request(
    name: str = "run-1", symbol: str = "AAA", side: str = "buy", quantity: str = "10", tif: str = "opg", limit: str = ""
) -> OrderRequest:
    """A market order, or a limit order with `limit`, under the client order id `name`."""
    kind, price = (OrderType.LIMIT, Decimal(limit)) if limit else (OrderType.MARKET, None)
    return OrderRequest(name, symbol, Side(side), Decimal(quantity), TimeInForce(tif), kind, price)


def submit(setup: BrokerSetup, request: OrderRequest) -> Order:
    """The order that the broker confirmed."""
    outcome = setup.broker.submit(request)
    assert isinstance(outcome, Confirmed), outcome
    assert outcome.order is not None
    return outcome.order


def rejection_reason(outcome: object) -> Reason:
    """The reason of an outcome that must be a rejection with a message."""
    assert isinstance(outcome, Rejected), outcome
    assert outcome.message
    return outcome.reason


def open_price(setup: BrokerSetup, symbol: str = "AAA", day: date = DAY) -> Decimal:
    table = setup.feed.bars([symbol], day, day, "raw")
    return Decimal(repr(float(table.open[0, 0])))
