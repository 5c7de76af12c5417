"""Compares the books of a journal with the books of its broker. Sends no order and writes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import select

from finrl_pod.paper.domain.port import Broker, Clock
from finrl_pod.paper.domain.records import Order
from finrl_pod.paper.execution.adoption import own_orders
from finrl_pod.paper.execution.reconcile import (
    ATTEMPTS,
    CASH_TOLERANCE,
    RELATIVE_CASH_TOLERANCE,
    expected_cash,
    unrecorded_activities,
)
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import OrderStatusRow
from finrl_pod.paper.monitoring.status import orders as journal_orders
from finrl_pod.paper.settings import PaperConfig, allocations

ZERO = Decimal(0)
CHECKS = ("equity", "cash", "positions", "orders", "fills")
MAX_PAUSE = 5.0  # real seconds before books that differ are read again: the daemon may not have polled yet
VALUE_TOLERANCE = Decimal("1e-5")  # of the value of fills: a price may follow from a rounded average
MISSING = "none"


@dataclass(frozen=True)
class BookDifference:
    """A disagreement of the two books. order: client order id, symbol: stock; empty if it is about neither."""

    check: str
    ours: str
    broker: str
    order: str = ""
    symbol: str = ""


@dataclass(frozen=True)
class Verification:
    """Whether the books agree, by name of the check, and their differences."""

    checks: Mapping[str, bool]
    differences: tuple[BookDifference, ...]


def verify(store: Store, config: PaperConfig, broker: Broker, clock: Clock) -> Verification:
    """Compare the books of journal and broker, up to three times if they differ. Raises BrokerError, JournalError."""
    differences: tuple[BookDifference, ...] = ()
    for attempt in range(ATTEMPTS):
        if attempt:
            clock.sleep(config.timing.poll, MAX_PAUSE)
        account = broker.account()
        store.check_bound("account", account.id)
        differences = (*_account_differences(Ledger(store), broker), *_order_differences(store, config, broker))
        if not differences:
            break
    different_checks = {difference.check for difference in differences}
    return Verification({name: name not in different_checks for name in CHECKS}, differences)


def _account_differences(ledger: Ledger, broker: Broker) -> Iterator[BookDifference]:
    """Compare equity, cash and positions, both own and external. The prices are the broker's."""
    positions = {position.symbol: position for position in broker.positions()}
    account = broker.account()
    external_positions = ledger.external_positions()
    cash = expected_cash(ledger)
    if cash is None:  # never compared with the account: a first start takes it as it is
        cash = account.cash
    changes: dict[str, Decimal] = defaultdict(Decimal)
    for activity in unrecorded_activities(ledger, broker):  # the daemon records them with its next comparison
        cash += activity.cash
        changes[activity.symbol] += activity.quantity
    equity = cash
    for symbol in sorted({*positions, *external_positions, *ledger.positions, *changes}):
        position = positions.get(symbol)
        shares_at_broker = position.quantity if position else ZERO
        shares = ledger.positions.get(symbol, ZERO) + external_positions.get(symbol, ZERO) + changes[symbol]
        price = (position.price if position else None) or ledger.closes.prices.get(symbol, ZERO)
        equity += shares * price
        if shares != shares_at_broker:
            yield BookDifference("positions", f"{shares:f}", f"{shares_at_broker:f}", symbol=symbol)
    if abs(equity - account.equity) > max(CASH_TOLERANCE, RELATIVE_CASH_TOLERANCE * abs(account.equity)):
        yield BookDifference("equity", f"{equity:.2f}", f"{account.equity:.2f}")
    if abs(cash - account.cash) > CASH_TOLERANCE:
        yield BookDifference("cash", f"{cash:.2f}", f"{account.cash:.2f}")


def _order_differences(store: Store, config: PaperConfig, broker: Broker) -> Iterator[BookDifference]:
    """Compare own orders, and the sums of their fills."""
    runs = [*(allocation.name for allocation in allocations(config)), config.name]
    broker_orders = {order.client_order_id: order for order, *_ in own_orders(broker.orders("all"), runs)}
    rows = {row.client_order_id: row for row in journal_orders(store)}
    for name in sorted({*broker_orders, *rows}):
        row = rows.get(name)
        order = broker_orders.get(name)
        ours = MISSING if row is None else _order_text(row, row.filled)
        at_broker = MISSING if order is None else _order_text(order, order.filled_quantity)
        never_accepted = row is not None and order is None and row.state in ("refused", "lost") and not row.filled
        if ours != at_broker and not never_accepted:
            yield BookDifference("orders", ours, at_broker, order=name)
    names = {order.id: name for name, order in broker_orders.items()}
    events = schema.order_events
    query = select(events.c.broker_id, schema.orders.c.client_order_id).join_from(events, schema.orders).distinct()
    names |= {row.broker_id: row.client_order_id for row in store.query(query)}
    sums_at_broker: dict[str, _FillSum] = defaultdict(_FillSum)
    for fill in broker.fills_since(None).fills:
        if fill.order_id in names:
            sums_at_broker[names[fill.order_id]].add(fill.quantity, fill.price)
    own_sums: dict[str, _FillSum] = defaultdict(_FillSum)
    query = select(schema.fills, schema.orders.c.client_order_id).join_from(schema.fills, schema.orders)
    for row in store.query(query):
        own_sums[row.client_order_id].add(Decimal(row.quantity), Decimal(row.price))
    for name in sorted({*sums_at_broker, *own_sums}):
        if not own_sums[name].equals(sums_at_broker[name]):
            yield BookDifference("fills", str(own_sums[name]), str(sums_at_broker[name]), order=name)


@dataclass
class _FillSum:
    """Shares and value of the fills of an order."""

    quantity: Decimal = ZERO
    value: Decimal = ZERO

    def add(self, quantity: Decimal, price: Decimal) -> None:
        self.quantity += quantity
        self.value += quantity * price

    def equals(self, other: _FillSum) -> bool:
        tolerance = VALUE_TOLERANCE * max(self.value, other.value)
        return self.quantity == other.quantity and abs(self.value - other.value) <= tolerance

    def __str__(self) -> str:
        return f"{self.quantity:f} shares for {self.value:.2f}" if self.quantity else MISSING


def _order_text(order: Order | OrderStatusRow, filled: Decimal) -> str:
    quantity = order.quantity.normalize()
    return f"{order.side} {quantity:f} {order.symbol}, {filled.normalize():f} filled"
