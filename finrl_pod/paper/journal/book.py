"""The book: intents, their orders and fills, as the journal has them. What is held follows from it.

Open intents are kept in memory beside the file; memory changes only after the file has.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, select

from finrl_pod.paper.execution.intents import Intent, IntentState
from finrl_pod.paper.execution.order_state import Change, OrderState, OrderView
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.closes import Closes
from finrl_pod.paper.journal.store import Store, add, moment, stamp
from finrl_pod.paper.records import (
    TAKEN,
    CorporateAction,
    Fill,
    Order,
    OrderRequest,
    OrderStatus,
    OrderType,
    Side,
    TimeInForce,
)

ZERO = Decimal(0)


@dataclass(frozen=True)
class Loss:
    """Own shares that the account does not have any more, and the cash that others' sales of them brought."""

    symbol: str
    quantity: Decimal
    cash: Decimal


@dataclass
class TrackedOrder:
    """An order of an intent and what is known of it. id: its row."""

    id: int
    attempt: int
    view: OrderView


@dataclass
class TrackedIntent:
    """An intent with its orders, oldest first. id: its row."""

    id: int
    intent: Intent
    state: IntentState = IntentState.OPEN
    orders: list[TrackedOrder] = field(default_factory=list)

    @property
    def filled(self) -> Decimal:
        """Shares filled over all orders."""
        return sum((order.view.filled for order in self.orders), ZERO)

    @property
    def remaining(self) -> Decimal:
        """Shares still wanted."""
        return max(self.intent.quantity - self.filled, ZERO)

    @property
    def live(self) -> TrackedOrder | None:
        """The one order that may still fill, or None."""
        return next((order for order in self.orders if order.view.state.may_fill), None)


class Book:
    """Reads and writes of one run's book. positions: own shares by symbol; cash: own cash flows so far; closes: what
    shares are valued at.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.positions: dict[str, Decimal] = defaultdict(Decimal)
        self.cash = ZERO
        self.closes = Closes(store)
        self.open: dict[int, TrackedIntent] = {}
        self._load()

    # ------------------------------------------------------------------ writing

    def plan(self, connection: Connection, at: datetime, intents: list[Intent]) -> list[TrackedIntent]:
        """Write intents inside a transaction of the caller, who passes them to `adopt` once it is through."""
        tracked = []
        for intent in intents:
            row = add(connection, schema.intents, at, **_intent_values(intent))
            add(connection, schema.intent_events, at, intent_id=row, state=IntentState.OPEN.value, detail="")
            tracked.append(TrackedIntent(row, intent))
        return tracked

    def adopt(self, intents: list[TrackedIntent]) -> None:
        """Keep planned intents in memory, after their transaction."""
        self.open |= {tracked.id: tracked for tracked in intents}

    def start_order(self, tracked: TrackedIntent, request: OrderRequest, at: datetime) -> TrackedOrder:
        """Write that an order is about to be sent, before it is. Refuses a second live one, and more than is wanted."""
        if tracked.live is not None:
            raise AssertionError(f"intent {tracked.id} has a live order already")
        if request.quantity > tracked.remaining:
            raise AssertionError(f"intent {tracked.id} wants {tracked.remaining} more, not {request.quantity}")
        return self._add_order(tracked, request, at, "plan")

    def adopt_order(self, tracked: TrackedIntent, order: Order, at: datetime) -> TrackedOrder:
        """Write that an order at the broker, which somebody put in the place of the intent's last one, is ours."""
        return self._add_order(tracked, order, at, "replaced")

    def owner(self, broker_id: str) -> TrackedIntent | None:
        """The open intent that an order belongs to."""
        open_ = self.open.values()
        return next((t for t in open_ if any(o.view.broker_id == broker_id for o in t.orders)), None)

    def record(self, order: TrackedOrder, change: Change, at: datetime, source: str, detail: str = "") -> bool:
        """Write what was heard of an order, with its fills, in one transaction. False where nothing was new."""
        if change.view == order.view and not change.bookings:
            return False
        with self.store.write() as connection:
            self._event(connection, order.id, change.view, at, source, detail)
            for booking in change.bookings:
                add(
                    connection, schema.fills, at, order_id=order.id, execution_id=booking.execution_id,
                    quantity=str(booking.quantity), cumulative_quantity=str(booking.cumulative_quantity),
                    price=str(booking.price), fee=str(booking.fee), time=stamp(booking.time),
                    source=source,
                )  # fmt: skip
        order.view = change.view
        for booking in change.bookings:
            signed = order.view.side.sign * booking.quantity
            self.positions[order.view.symbol] += signed
            self.cash -= signed * booking.price + booking.fee
        return True

    def close(self, tracked: TrackedIntent, state: IntentState, at: datetime, detail: str = "") -> None:
        """Write that nothing more is sent for an intent."""
        self.store.add(schema.intent_events, at, intent_id=tracked.id, state=state.value, detail=detail)
        tracked.state = state
        self.open.pop(tracked.id, None)

    @property
    def cursor(self) -> str | None:
        """Up to where fills were taken in."""
        row = self.store.last(schema.cursors, schema.cursors.c.name == "fills")
        return None if row is None else str(row.value)

    def move_cursor(self, value: str, at: datetime) -> None:
        """Write that fills up to there were taken in; they are all booked by then."""
        self.store.add(schema.cursors, at, name="fills", value=value)

    def foreign_fill(self, fill: Fill, at: datetime) -> None:
        """Write an execution of an order that is not ours, once."""
        known = schema.foreign_fills.c.execution_id == fill.id
        if self.store.last(schema.foreign_fills, known) is None:
            self.store.add(
                schema.foreign_fills, at, execution_id=fill.id, broker_order_id=fill.order_id, symbol=fill.symbol,
                quantity=str(fill.side.sign * fill.quantity), price=str(fill.price), time=stamp(fill.time),
            )  # fmt: skip

    def book_action(
        self, action: CorporateAction, own_change: Decimal, foreign_change: Decimal, cash: Decimal, at: datetime
    ) -> None:
        """Write a corporate action with what it did to own and foreign shares, to own cash and to the last close."""
        closes = self.closes.after(action)
        with self.store.write() as connection:
            add(
                connection, schema.corporate_actions, at, action_id=action.id, kind=action.kind.value,
                symbol=action.symbol, ex_date=action.ex_date.isoformat(), own_change=str(own_change),
                foreign_change=str(foreign_change), cash=str(cash), detail=action.detail,
            )  # fmt: skip
            self.closes.write(connection, closes, at)
        self.closes.adopt(closes)
        self.positions[action.symbol] += own_change
        self.cash += cash

    def write_loss(self, connection: Connection, loss: Loss, at: datetime) -> None:
        """Write inside a transaction of the caller, who passes it to `adopt_loss`, that own shares are gone.

        As many foreign shares are added: what stood against ours is balanced.
        """
        add(
            connection, schema.corporate_actions, at, action_id=f"{TAKEN} {loss.symbol} {stamp(at)}", kind=TAKEN,
            symbol=loss.symbol, ex_date=at.date().isoformat(), own_change=str(-loss.quantity),
            foreign_change=str(loss.quantity), cash=str(loss.cash), detail="acknowledged",
        )  # fmt: skip

    def adopt_loss(self, loss: Loss) -> None:
        """Keep a loss in memory, after its transaction."""
        self.positions[loss.symbol] -= loss.quantity
        self.cash += loss.cash

    # ------------------------------------------------------------------ reading

    def foreign_proceeds(self, symbol: str, quantity: Decimal) -> Decimal:
        """What others' newest sales of so many shares brought; sales that an earlier loss was paid with are over.

        Shares that went without a sale bring nothing.
        """
        actions, sales = schema.corporate_actions.c, schema.foreign_fills.c
        before = self.store.last(schema.corporate_actions, actions.kind == TAKEN, actions.symbol == symbol)
        since = "" if before is None else before.at
        cash = ZERO
        for row in reversed(self.store.rows(schema.foreign_fills, sales.symbol == symbol, sales.at > since)):
            sold = min(max(-Decimal(row.quantity), ZERO), quantity)
            cash, quantity = cash + sold * Decimal(row.price), quantity - sold
        return cash

    def live_orders(self) -> list[tuple[TrackedIntent, TrackedOrder]]:
        """Orders that may still fill, with their intents."""
        return [(t, order) for t in self.open.values() for order in t.orders if order.view.state.may_fill]

    def find(self, *, client_order_id: str = "", broker_id: str = "") -> TrackedOrder | None:
        """One of our orders, of an open intent or any older one, by either name."""
        for tracked in self.open.values():
            for order in tracked.orders:
                if client_order_id == order.view.client_order_id or (broker_id and broker_id == order.view.broker_id):
                    return order
        with self.store.read() as connection:
            return _find_on_disk(connection, client_order_id, broker_id)

    def traded_and_closed(self, bar: str) -> Decimal:
        """Value, at the decision's prices, of what closed intents of a bar have filled."""
        fills, orders, intents = schema.fills.c, schema.orders.c, schema.intents.c
        wanted = (
            select(fills.quantity, intents.reference_price, intents.id)
            .join(schema.orders, fills.order_id == orders.id)
            .join(schema.intents, orders.intent_id == intents.id)
            .where(intents.bar == bar)
        )
        with self.store.read() as connection:
            rows = connection.execute(wanted).all()
        return sum((Decimal(r.quantity) * Decimal(r.reference_price) for r in rows if r.id not in self.open), ZERO)

    def used_names(self) -> set[str]:
        """Every client_order_id that the journal knows."""
        with self.store.read() as connection:
            return set(connection.execute(select(schema.orders.c.client_order_id)).scalars())

    def foreign(self) -> dict[str, Decimal]:
        """Shares by symbol that are the account's and not ours: recorded ones, foreign fills, and booked actions."""
        held: dict[str, Decimal] = defaultdict(Decimal)
        for table, column in (
            (schema.foreign_positions, "quantity"),
            (schema.foreign_fills, "quantity"),
            (schema.corporate_actions, "foreign_change"),
        ):
            for row in self.store.rows(table):
                held[row.symbol] += Decimal(getattr(row, column))
        return {symbol: quantity for symbol, quantity in held.items() if quantity}

    def foreign_cash(self) -> Decimal:
        """Cash flows of foreign fills."""
        rows = self.store.rows(schema.foreign_fills)
        return -sum((Decimal(row.quantity) * Decimal(row.price) for row in rows), ZERO)

    # ------------------------------------------------------------------ inside

    def _load(self) -> None:
        fills, orders, intents = schema.fills.c, schema.orders.c, schema.intents.c
        with self.store.read() as connection:
            for row in connection.execute(
                select(intents.symbol, intents.side, fills.quantity, fills.price, fills.fee)
                .join(schema.orders, fills.order_id == orders.id)
                .join(schema.intents, orders.intent_id == intents.id)
            ):
                signed = Side(row.side).sign * Decimal(row.quantity)
                self.positions[row.symbol] += signed
                self.cash -= signed * Decimal(row.price) + Decimal(row.fee)
            for row in connection.execute(select(schema.corporate_actions)):
                self.positions[row.symbol] += Decimal(row.own_change)
                self.cash += Decimal(row.cash)
            final = [state.value for state in IntentState if state.final]
            closed = select(schema.intent_events.c.intent_id).where(schema.intent_events.c.state.in_(final))
            for row in connection.execute(
                select(schema.intents).where(intents.id.not_in(closed)).order_by(intents.id)
            ).all():
                tracked = TrackedIntent(row.id, _intent(row))
                for order in connection.execute(
                    select(schema.orders).where(orders.intent_id == row.id).order_by(orders.id)
                ).all():
                    tracked.orders.append(TrackedOrder(order.id, order.attempt, _view(connection, order, row)))
                self.open[row.id] = tracked

    def _add_order(
        self, tracked: TrackedIntent, asked: OrderRequest | Order, at: datetime, source: str
    ) -> TrackedOrder:
        attempt = len(tracked.orders)
        view = OrderView(asked.client_order_id, asked.symbol, asked.side, asked.quantity)
        with self.store.write() as connection:
            row = add(
                connection, schema.orders, at, client_order_id=asked.client_order_id, intent_id=tracked.id,
                attempt=attempt, quantity=str(asked.quantity), time_in_force=asked.time_in_force.value,
                type=asked.type.value, limit_price=_optional(asked.limit_price),
                replaces=tracked.orders[-1].view.client_order_id if tracked.orders else None,
            )  # fmt: skip
            self._event(connection, row, view, at, source, "")
        order = TrackedOrder(row, attempt, view)
        tracked.orders.append(order)
        return order

    def _event(
        self, connection: Connection, order_id: int, view: OrderView, at: datetime, source: str, detail: str
    ) -> None:
        add(
            connection, schema.order_events, at, order_id=order_id, state=view.state.value, broker_id=view.broker_id,
            status=view.status.value, filled=str(view.filled), value=str(view.value),
            cancel_requested=int(view.cancel_requested), source=source, detail=detail,
        )  # fmt: skip


def _find_on_disk(connection: Connection, client_order_id: str, broker_id: str) -> TrackedOrder | None:
    orders, events = schema.orders.c, schema.order_events.c
    if client_order_id:
        wanted = orders.client_order_id == client_order_id
    else:
        wanted = orders.id.in_(select(events.order_id).where(events.broker_id == broker_id))
    order = connection.execute(select(schema.orders).where(wanted)).first()
    if order is None:
        return None
    intent = connection.execute(select(schema.intents).where(schema.intents.c.id == order.intent_id)).one()
    return TrackedOrder(order.id, order.attempt, _view(connection, order, intent))


def _view(connection: Connection, order: Any, intent: Any) -> OrderView:
    """From an order's last event."""
    events = schema.order_events
    last = connection.execute(
        select(events).where(events.c.order_id == order.id).order_by(events.c.id.desc()).limit(1)
    ).one()
    return OrderView(
        order.client_order_id, intent.symbol, Side(intent.side), Decimal(order.quantity), OrderState(last.state),
        last.broker_id, OrderStatus(last.status), Decimal(last.filled), Decimal(last.value),
        bool(last.cancel_requested), doubt=OrderState(last.state).may_fill,
    )  # fmt: skip


def _intent_values(intent: Intent) -> dict[str, str | None]:
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
