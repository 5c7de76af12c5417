"""The ledger: order intents with their orders and fills in the journal, and the positions and cash that follow.

Open intents are cached in memory; memory changes only after the file has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, select

from finrl_pod.paper.domain.intents import Intent, IntentState
from finrl_pod.paper.domain.order_state import Change, OrderState, TrackedOrder
from finrl_pod.paper.domain.records import (
    SOLD_BY_OTHERS,
    Fill,
    Order,
    OrderRequest,
    OrderStatus,
    OrderType,
    Side,
    TimeInForce,
)
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.closes import Close, Closes
from finrl_pod.paper.journal.store import Store, add, moment, stamp

ZERO = Decimal(0)
PART_STEP = Decimal("1e-9")  # of shares and cash that are split over strategies


@dataclass(frozen=True)
class Booking:
    """A change of shares and cash that is no fill, in own and external parts.

    action_id: unique. day: ex-date, or date of the change. unpaid: dividend of the own shares that the account is not
    credited with; negative once it is. weights: parts of the strategies by run, None for their shares of the symbol.
    """

    action_id: str
    kind: str
    symbol: str
    day: date
    own_change: Decimal = ZERO
    external_change: Decimal = ZERO
    cash: Decimal = ZERO
    external_cash: Decimal = ZERO
    unpaid: Decimal = ZERO
    detail: str = ""
    weights: Mapping[str, Decimal] | None = None

    def text(self) -> str:
        """Return what changes in one sentence."""
        amounts = {
            "own shares": self.own_change, "external shares": self.external_change, "of own cash": self.cash,
            "of external cash": self.external_cash,
        }  # fmt: skip
        changes = ", ".join(f"{amount:+,f} {name}" for name, amount in amounts.items() if amount)
        return f"the broker booked a {self.kind.replace('_', ' ')} {self.symbol}".rstrip() + f": {changes or 'nothing'}"


@dataclass
class Book:
    """The part of one strategy in the account: own shares by symbol, and the sum of its cash flows so far."""

    positions: dict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    cash: Decimal = ZERO


@dataclass
class LedgerEntry:
    """An intent with its orders, oldest first. id: row in the journal."""

    id: int
    intent: Intent
    state: IntentState = IntentState.OPEN
    orders: list[TrackedOrder] = field(default_factory=list)

    @property
    def filled(self) -> Decimal:
        """Shares filled over all orders."""
        return sum((order.filled for order in self.orders), ZERO)

    @property
    def remaining(self) -> Decimal:
        """Shares not filled yet."""
        return max(self.intent.quantity - self.filled, ZERO)

    @property
    def live(self) -> TrackedOrder | None:
        """The order that may still fill, at most one, or None."""
        return next((order for order in self.orders if order.state.may_fill), None)


class Ledger:
    """The ledger of one account.

    positions: own shares by symbol. cash: sum of own cash flows so far. closes: prices that value the shares.
    open: open intents by row. books: the parts of several strategies in positions and cash, by run.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.positions: dict[str, Decimal] = defaultdict(Decimal)
        self.cash = ZERO
        self.closes = Closes(store)
        self.open: dict[int, LedgerEntry] = {}
        self.books: dict[str, Book] = defaultdict(Book)
        self._last_rows: dict[str, int] = defaultdict(int)  # by table: the last row in positions and cash
        self.read_new_rows()
        self._load_open()

    # ------------------------------------------------------------------ writing

    def add_intents(self, connection: Connection, now: datetime, intents: list[Intent]) -> list[LedgerEntry]:
        """Write intents inside the transaction of the caller; the caller passes them to `track` after the commit."""
        new_entry = []
        for intent in intents:
            row = add(connection, schema.intents, now, **_intent_values(intent))
            add(connection, schema.intent_events, now, intent_id=row, state=IntentState.OPEN.value, detail="")
            new_entry.append(LedgerEntry(row, intent))
        return new_entry

    def track(self, intents: list[LedgerEntry]) -> None:
        """Cache written intents in memory, after their transaction committed."""
        self.open |= {entry.id: entry for entry in intents}

    def start_order(self, entry: LedgerEntry, request: OrderRequest, now: datetime) -> TrackedOrder:
        """Write an order before it is sent. Raises AssertionError if another one is live, or for too many shares."""
        if entry.live is not None:
            raise AssertionError(f"intent {entry.id} already has a live order")
        if request.quantity > entry.remaining:
            raise AssertionError(f"intent {entry.id} has {entry.remaining} shares left, not {request.quantity}")
        return self.add_order(entry, request, now, "plan")

    def intent_of_order(self, broker_id: str) -> LedgerEntry | None:
        """Return the open intent that an order belongs to, or None."""
        return next((t for t in self.open.values() if any(o.broker_id == broker_id for o in t.orders)), None)

    def record(self, order: TrackedOrder, change: Change, now: datetime, source: str, detail: str = "") -> bool:
        """Write an order's new state and fills in one transaction. Returns False if nothing changed."""
        if change.order == order and not change.fills:
            return False
        with self.store.write() as connection:
            self._add_event(connection, change.order, now, source, detail)
            for fill in change.fills:
                add(
                    connection, schema.fills, now, order_id=order.id, execution_id=fill.id,
                    quantity=str(fill.quantity), cumulative_quantity=str(fill.cumulative_quantity),
                    price=str(fill.price), fee=str(fill.fee), time=stamp(fill.time), source=source,
                )  # fmt: skip
        order.update(change.order)
        for fill in change.fills:
            self._add_fill(order.run, order.symbol, order.side, fill.quantity, fill.price, fill.fee)
        return True

    def close(self, entry: LedgerEntry, state: IntentState, now: datetime, detail: str = "") -> None:
        """Write an intent's final state: no further order is sent for it."""
        self.store.add(schema.intent_events, now, intent_id=entry.id, state=state.value, detail=detail)
        entry.state = state
        self.open.pop(entry.id, None)

    @property
    def fill_cursor(self) -> str | None:
        """Broker cursor of the last fill recorded, or None."""
        row = self.store.last(schema.cursors, schema.cursors.c.name == "fills")
        return None if row is None else str(row.value)

    def move_fill_cursor(self, value: str, now: datetime) -> None:
        """Write the cursor up to which all fills are recorded."""
        self.store.add(schema.cursors, now, name="fills", value=value)

    def record_external_fill(self, fill: Fill, now: datetime) -> None:
        """Write an execution of an external order, once."""
        is_known = schema.foreign_fills.c.execution_id == fill.id
        if self.store.last(schema.foreign_fills, is_known) is None:
            self.store.add(
                schema.foreign_fills, now, execution_id=fill.id, broker_order_id=fill.order_id, symbol=fill.symbol,
                quantity=str(fill.side.sign * fill.quantity), price=str(fill.price), time=stamp(fill.time),
            )  # fmt: skip

    def book(self, booking: Booking, now: datetime, closes: Mapping[str, Close] | None = None) -> None:
        """Write a booking with the closes that change with it."""
        new_closes = closes or {}
        with self.store.write() as connection:
            self.write_booking(connection, booking, now)
            self.closes.write(connection, new_closes, now)
        self.closes.apply(new_closes)
        self.apply_booking(booking)

    def write_booking(self, connection: Connection, booking: Booking, now: datetime) -> None:
        """Write a booking inside the transaction of the caller; the caller passes it to `apply_booking`."""
        row = add(
            connection, schema.corporate_actions, now, action_id=booking.action_id, kind=booking.kind,
            symbol=booking.symbol, ex_date=booking.day.isoformat(), own_change=str(booking.own_change),
            foreign_change=str(booking.external_change), cash=str(booking.cash),
            foreign_cash=str(booking.external_cash), detail=booking.detail,
        )  # fmt: skip
        for run, (change, cash, unpaid) in self._split_by_strategy(booking).items():
            values = {"own_change": str(change), "cash": str(cash), "unpaid": str(unpaid)}
            add(connection, schema.action_parts, now, action_id=row, run=run, **values)

    def apply_booking(self, booking: Booking) -> None:
        """Update positions and cash in memory, after the transaction committed."""
        parts = self._split_by_strategy(booking)
        self.positions[booking.symbol] += booking.own_change
        self.cash += booking.cash
        for run, (change, cash, _) in parts.items():
            self.books[run].positions[booking.symbol] += change
            self.books[run].cash += cash

    def shares_by_run(self, symbol: str) -> dict[str, Decimal]:
        """Return the own shares of a symbol by strategy."""
        return {run: book.positions[symbol] for run, book in self.books.items() if book.positions.get(symbol)}

    def _split_by_strategy(self, booking: Booking) -> dict[str, list[Decimal]]:
        """Split own shares, cash and unpaid dividends over the strategies in proportion to their weights, exactly."""
        weights = self.shares_by_run(booking.symbol) if booking.weights is None else booking.weights
        amounts = (booking.own_change, booking.cash, booking.unpaid)
        total = sum(weights.values(), ZERO)
        parts = {
            run: [(amount * (weight / total if total else ZERO)).quantize(PART_STEP) for amount in amounts]
            for run, weight in sorted(weights.items())
        }
        if parts:
            largest = max(weights, key=lambda run: abs(weights[run]))
            for i, amount in enumerate(amounts):
                parts[largest][i] += amount - sum((part[i] for part in parts.values()), ZERO)
        return parts

    # ------------------------------------------------------------------ reading

    def external_proceeds(self, symbol: str, quantity: Decimal) -> Decimal:
        """Return the proceeds of the newest sales of `quantity` shares by other clients, in currency.

        Sales before the last write-off of the symbol do not count again. Shares without a sale have no proceeds.
        """
        actions = schema.corporate_actions.c
        sales = schema.foreign_fills.c
        is_write_off = (actions.kind == SOLD_BY_OTHERS, actions.symbol == symbol)
        last_write_off = self.store.last(schema.corporate_actions, *is_write_off)
        start = "" if last_write_off is None else last_write_off.at
        cash = ZERO
        for row in reversed(self.store.rows(schema.foreign_fills, sales.symbol == symbol, sales.at > start)):
            shares_sold = min(max(-Decimal(row.quantity), ZERO), quantity)
            cash += shares_sold * Decimal(row.price)
            quantity -= shares_sold
        return cash

    def live_orders(self) -> list[tuple[LedgerEntry, TrackedOrder]]:
        """Return the orders that may still fill, with their intents."""
        return [(t, order) for t in self.open.values() for order in t.orders if order.state.may_fill]

    def find(self, *, client_order_id: str = "", broker_id: str = "") -> TrackedOrder | None:
        """Return an own order, of an open or a closed intent, by our id or the broker's; None if there is none."""
        for entry in self.open.values():
            for order in entry.orders:
                if client_order_id == order.client_order_id or (broker_id and broker_id == order.broker_id):
                    return order
        with self.store.read() as connection:
            return _find_on_disk(connection, client_order_id, broker_id)

    def closed_intents_value(self, run: str, bar: str) -> Decimal:
        """Return the value filled by closed intents of a run's decision bar, at the decision prices."""
        intents = schema.intents.c
        rows = self.store.query(schema.fills_with_intents.where(intents.run == run, intents.bar == bar))
        values = (Decimal(r.quantity) * Decimal(r.reference_price) for r in rows if r.intent_id not in self.open)
        return sum(values, ZERO)

    def client_order_ids(self) -> set[str]:
        """Return every client_order_id in the journal."""
        return {row.client_order_id for row in self.store.query(select(schema.orders.c.client_order_id))}

    def newest_moment(self) -> datetime | None:
        """Return when the newest order was written, or the first comparison with the account; None without either."""
        row = self.store.last(schema.orders)
        if row is None:
            marks = self.store.rows(schema.cash_marks)
            row = marks[0] if marks else None
        return None if row is None else moment(row.at)

    def external_positions(self) -> dict[str, Decimal]:
        """Return external shares by symbol: recorded positions, external fills and corporate actions."""
        positions: dict[str, Decimal] = defaultdict(Decimal)
        for table, column in (
            (schema.foreign_positions, "quantity"),
            (schema.foreign_fills, "quantity"),
            (schema.corporate_actions, "foreign_change"),
        ):
            for row in self.store.rows(table):
                positions[row.symbol] += Decimal(getattr(row, column))
        return {symbol: quantity for symbol, quantity in positions.items() if quantity}

    def external_cash(self) -> Decimal:
        """Return the sum of cash flows of external fills, dividends and transfers."""
        fills = self.store.rows(schema.foreign_fills)
        bookings = sum((Decimal(row.foreign_cash) for row in self.store.rows(schema.corporate_actions)), ZERO)
        return bookings - sum((Decimal(row.quantity) * Decimal(row.price) for row in fills), ZERO)

    def unpaid_dividends(self) -> dict[str, dict[str, Decimal]]:
        """Return the dividends that the account was not credited with, by symbol and strategy."""
        columns = (schema.corporate_actions.c.symbol, schema.action_parts.c.run, schema.action_parts.c.unpaid)
        sums: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
        for row in self.store.query(select(*columns).join_from(schema.action_parts, schema.corporate_actions)):
            sums[row.symbol][row.run] += Decimal(row.unpaid)
        return {symbol: parts for symbol, parts in sorted(sums.items()) if any(parts.values())}

    def read_new_rows(self) -> None:
        """Add shares, cash and closes of the rows written since the last call. For a ledger that itself writes none."""
        self.closes.read_new_rows()
        action_parts = select(schema.action_parts, schema.corporate_actions.c.symbol).join_from(
            schema.action_parts, schema.corporate_actions
        )
        queries = (
            (schema.fills, schema.fills_with_intents),
            (schema.corporate_actions, select(schema.corporate_actions)),
            (schema.action_parts, action_parts),
        )
        with self.store.read() as connection:
            fills, actions, parts = (
                connection.execute(query.where(table.c.id > self._last_rows[table.name])).all()
                for table, query in queries
            )
        for row in fills:
            self._add_fill(row.run, row.symbol, Side(row.side), *map(Decimal, (row.quantity, row.price, row.fee)))
        for row in actions:
            self.positions[row.symbol] += Decimal(row.own_change)
            self.cash += Decimal(row.cash)
        for row in parts:
            self.books[row.run].positions[row.symbol] += Decimal(row.own_change)
            self.books[row.run].cash += Decimal(row.cash)
        for (table, _), rows in zip(queries, (fills, actions, parts), strict=True):
            self._last_rows[table.name] = max((row.id for row in rows), default=self._last_rows[table.name])

    def _load_open(self) -> None:
        orders = schema.orders.c
        intents = schema.intents.c
        with self.store.read() as connection:
            final = [state.value for state in IntentState if state.final]
            closed_intents = select(schema.intent_events.c.intent_id).where(schema.intent_events.c.state.in_(final))
            for row in connection.execute(
                select(schema.intents).where(intents.id.not_in(closed_intents)).order_by(intents.id)
            ).all():
                entry = LedgerEntry(row.id, _intent(row))
                for order in connection.execute(
                    select(schema.orders).where(orders.intent_id == row.id).order_by(orders.id)
                ).all():
                    entry.orders.append(_tracked_order(connection, order, row))
                self.open[row.id] = entry

    def _add_fill(self, run: str, symbol: str, side: Side, quantity: Decimal, price: Decimal, fee: Decimal) -> None:
        for book in (self, self.books[run]):
            book.positions[symbol] += side.sign * quantity
            book.cash -= side.sign * quantity * price + fee

    def add_order(self, entry: LedgerEntry, terms: OrderRequest | Order, now: datetime, source: str) -> TrackedOrder:
        """Write an own order of an intent. source: where it comes from."""
        attempt = len(entry.orders)
        with self.store.write() as connection:
            row = add(
                connection, schema.orders, now, client_order_id=terms.client_order_id, intent_id=entry.id,
                attempt=attempt, quantity=str(terms.quantity), time_in_force=terms.time_in_force.value,
                type=terms.type.value, limit_price=_optional(terms.limit_price),
                replaces=entry.orders[-1].client_order_id if entry.orders else None,
            )  # fmt: skip
            order = TrackedOrder(
                row, attempt, entry.intent.run, now, terms.client_order_id, terms.symbol, terms.side, terms.quantity
            )
            self._add_event(connection, order, now, source, "")
        entry.orders.append(order)
        return order

    def _add_event(self, connection: Connection, order: TrackedOrder, now: datetime, source: str, detail: str) -> None:
        add(
            connection, schema.order_events, now, order_id=order.id, state=order.state.value, broker_id=order.broker_id,
            status=order.status.value, filled=str(order.filled), value=str(order.value),
            cancel_requested=int(order.cancel_requested), source=source, detail=detail,
        )  # fmt: skip


def market_value(positions: Mapping[str, Decimal], prices: Mapping[str, Decimal]) -> Decimal:
    """Return the value of shares at prices, both by symbol, in currency. A symbol without a price counts as 0."""
    return sum((shares * prices.get(symbol, ZERO) for symbol, shares in positions.items() if shares), ZERO)


def _find_on_disk(connection: Connection, client_order_id: str, broker_id: str) -> TrackedOrder | None:
    orders = schema.orders.c
    events = schema.order_events.c
    if client_order_id:
        condition = orders.client_order_id == client_order_id
    else:
        condition = orders.id.in_(select(events.order_id).where(events.broker_id == broker_id))
    order = connection.execute(select(schema.orders).where(condition)).first()
    if order is None:
        return None
    intent = connection.execute(select(schema.intents).where(schema.intents.c.id == order.intent_id)).one()
    return _tracked_order(connection, order, intent)


def _tracked_order(connection: Connection, order: Any, intent: Any) -> TrackedOrder:
    """Restore an order with the state of its last event."""
    events = schema.order_events
    last = connection.execute(
        select(events).where(events.c.order_id == order.id).order_by(events.c.id.desc()).limit(1)
    ).one()
    return TrackedOrder(
        id=order.id,
        attempt=order.attempt,
        run=intent.run,
        sent_at=moment(order.at),
        client_order_id=order.client_order_id,
        symbol=intent.symbol,
        side=Side(intent.side),
        quantity=Decimal(order.quantity),
        state=OrderState(last.state),
        broker_id=last.broker_id,
        status=OrderStatus(last.status),
        filled=Decimal(last.filled),
        value=Decimal(last.value),
        cancel_requested=bool(last.cancel_requested),
        stale=OrderState(last.state).may_fill,
    )


def _intent_values(intent: Intent) -> dict[str, str | int | None]:
    return {
        "run": intent.run, "bar": intent.bar, "symbol": intent.symbol, "side": intent.side.value,
        "quantity": str(intent.quantity), "time_in_force": intent.time_in_force.value, "type": intent.type.value,
        "limit_price": _optional(intent.limit_price), "reference_price": str(intent.reference_price),
        "opens": stamp(intent.opens), "deadline": stamp(intent.deadline), "ends": stamp(intent.ends),
    }  # fmt: skip


def _intent(row: Any) -> Intent:
    return Intent(
        row.run, row.bar, row.symbol, Side(row.side), Decimal(row.quantity), TimeInForce(row.time_in_force),
        OrderType(row.type), None if row.limit_price is None else Decimal(row.limit_price),
        Decimal(row.reference_price), moment(row.opens), moment(row.deadline), moment(row.ends),
    )  # fmt: skip


def _optional(value: Decimal | None) -> str | None:
    return None if value is None else str(value)
