"""Order state under random broker histories reported late, twice and out of order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.paper.domain.order_state import (
    Change,
    OrderState,
    TrackedOrder,
    apply_fill,
    apply_order,
    mark_cancel_requested,
    mark_lost,
    mark_rejected,
    mark_resent,
    mark_unknown,
)
from finrl_pod.paper.domain.records import Fill, Order, OrderStatus, OrderType, Side, TimeInForce

START = datetime(2024, 1, 2, 14, 30, tzinfo=UTC)
QUANTITY = Decimal(100)
ENDS = (OrderStatus.FILLED, OrderStatus.CANCELED, OrderStatus.EXPIRED, OrderStatus.REPLACED, OrderStatus.REJECTED)


def own_order(**changes: object) -> TrackedOrder:
    sent = TrackedOrder(1, 0, "a", START, "fp1.a.20240102.A.b0", "A", Side.BUY, QUANTITY)
    return replace(sent, **changes)  # type: ignore[arg-type]


def order(
    filled: int = 0, average: str | None = None, status: OrderStatus = OrderStatus.NEW, **changes: object
) -> Order:
    made = Order(
        "b-1", "fp1.a.20240102.A.b0", "A", Side.BUY, QUANTITY, Decimal(filled), status, TimeInForce.DAY,
        OrderType.MARKET, START, START, None if average is None else Decimal(average), raw_status=status.value,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def fill(quantity: int, cumulative: int, price: str = "10", name: str = "") -> Fill:
    made = Decimal(quantity), Decimal(cumulative), Decimal(price)
    return Fill(name or f"x{cumulative}", "b-1", "A", Side.BUY, *made, START)


@dataclass(frozen=True)
class History:
    """Fills of an order at the broker in order, and every state that the broker may report."""

    fills: tuple[Fill, ...]
    orders: tuple[Order, ...]

    @property
    def final(self) -> Order:
        return self.orders[-1]


@st.composite
def histories(draw: st.DrawFn) -> History:
    sizes = draw(st.lists(st.integers(1, 40), max_size=5))
    fills: list[Fill] = []
    orders = [order(status=OrderStatus.PENDING_NEW), order()]
    total, value = 0, Decimal(0)
    for i, size in enumerate(sizes):
        size = min(size, int(QUANTITY) - total)
        if not size:
            break
        price = Decimal(draw(st.integers(900, 1100))) / 100
        total, value = total + size, value + size * price
        fills.append(fill(size, total, str(price)))
        status = OrderStatus.FILLED if total == QUANTITY else OrderStatus.PARTIALLY_FILLED
        later = START + timedelta(seconds=i + 1)
        orders.append(order(total, str(value / total), status, updated_at=later))
    if total < QUANTITY:
        ended = draw(st.sampled_from([s for s in ENDS if s is not OrderStatus.FILLED] + [orders[-1].status]))
        average = str(value / total) if total else None
        orders.append(order(total, average, ended, updated_at=START + timedelta(hours=1)))
    return History(tuple(fills), tuple(orders))


def booked_totals(changes: list[Change]) -> tuple[TrackedOrder, Decimal, Decimal]:
    """Return the last state, and the total quantity and value of the fills booked by `changes`."""
    quantity = sum((b.quantity for c in changes for b in c.fills), Decimal(0))
    value = sum((b.quantity * b.price for c in changes for b in c.fills), Decimal(0))
    return changes[-1].order, quantity, value


@given(histories(), st.data())
def test_reports_in_any_order_book_exactly_the_broker_fills(history: History, data: st.DataObject) -> None:
    messages: list[Fill | Order] = [*history.fills, *history.orders]
    reports = data.draw(st.lists(st.sampled_from(messages), max_size=20))
    start = data.draw(
        st.sampled_from(
            [
                own_order(),
                mark_unknown(own_order()).order,
                mark_rejected(own_order()).order,
                mark_lost(own_order()).order,
            ]
        )
    )
    changes, seen_end = [Change(start)], False
    for message in reports:
        now = changes[-1].order
        change = (
            apply_fill(now, message) if isinstance(message, Fill) else apply_order(now, message, authoritative=False)
        )
        # Fills are never undone, an ended order stays ended, and fills never exceed the ordered quantity.
        assert change.order.filled >= now.filled
        assert change.order.filled <= QUANTITY
        assert not (now.state is OrderState.ENDED and change.order.state is not OrderState.ENDED)
        changes.append(change)
        seen_end |= isinstance(message, Order) and message.status.terminal
        if change.order.filled < QUANTITY and not seen_end:
            assert change.order.state is not OrderState.ENDED
    # The daemon then queries the executions, oldest first, and the order.
    for execution in history.fills:
        changes.append(apply_fill(changes[-1].order, execution))
    changes.append(apply_order(changes[-1].order, history.final, authoritative=True))
    last, quantity, value = booked_totals(changes)
    assert quantity == last.filled == history.final.filled_quantity
    assert value == last.value == sum((f.quantity * f.price for f in history.fills), Decimal(0))
    assert not last.stale
    assert (last.state is OrderState.ENDED) == (history.final.status.terminal or seen_end)


@given(histories(), st.data())
def test_missing_executions_are_booked_from_the_order_average(history: History, data: st.DataObject) -> None:
    """The list of executions may lag: the order's average price is booked, and late executions add nothing."""
    seen = data.draw(st.lists(st.sampled_from(history.orders), max_size=6))
    changes = [Change(own_order())]
    for message in seen:
        changes.append(apply_order(changes[-1].order, message, authoritative=True))
    changes.append(apply_order(changes[-1].order, history.final, authoritative=True))
    for execution in history.fills:
        changes.append(apply_fill(changes[-1].order, execution))
    last, quantity, value = booked_totals(changes)
    assert quantity == last.filled == history.final.filled_quantity
    expected = sum((f.quantity * f.price for f in history.fills), Decimal(0))
    assert abs(value - expected) < Decimal("1e-5")


def test_overlapping_fill_books_only_the_new_quantity() -> None:
    booked = apply_order(own_order(), order(30, "10", OrderStatus.PARTIALLY_FILLED), authoritative=True).order
    change = apply_fill(booked, fill(50, 60, "11"))
    assert change.fills[0].quantity == 30
    assert change.order.filled == 60


def test_fill_after_a_gap_is_not_booked_but_queried() -> None:
    change = apply_fill(own_order(), fill(10, 60))
    assert not change.fills
    assert change.order.stale


def test_fill_before_the_order_response_is_booked() -> None:
    early = apply_fill(own_order(), fill(40, 40)).order
    assert early.state is OrderState.WORKING
    late = apply_order(early, order(), authoritative=False).order
    assert (late.filled, late.state) == (Decimal(40), OrderState.WORKING)


def test_fill_of_a_cancelled_order_is_booked_and_the_order_stays_ended() -> None:
    ended = apply_order(own_order(), order(status=OrderStatus.CANCELED), authoritative=True).order
    change = apply_fill(ended, fill(40, 40))
    assert change.order.filled == 40
    assert change.order.state is OrderState.ENDED
    assert change.order.status is OrderStatus.CANCELED


def test_lost_order_accepts_fills() -> None:
    lost = mark_lost(mark_unknown(own_order()).order).order
    assert lost.state is OrderState.LOST
    assert not lost.state.may_fill
    change = apply_fill(lost, fill(100, 100))
    assert change.order.state is OrderState.ENDED
    assert change.fills[0].quantity == 100


def test_late_rejection_does_not_undo_earlier_reports() -> None:
    working = apply_order(own_order(), order(), authoritative=False).order
    assert mark_rejected(working).order is working
    assert mark_unknown(working).order is working


def test_order_of_another_symbol_with_our_client_id_is_not_booked() -> None:
    change = apply_order(own_order(), order(10, "10", OrderStatus.FILLED, symbol="B"), authoritative=True)
    assert not change.fills
    assert "none of its fills were recorded" in change.warnings[0]


def test_overfill_is_booked_and_reported() -> None:
    change = apply_fill(own_order(), fill(120, 120))
    assert change.order.filled == 120
    assert "overfilled: 120 shares of 100" in change.warnings[0]


def test_unknown_status_counts_as_live_and_is_reported() -> None:
    change = apply_order(own_order(), order(status=OrderStatus.UNKNOWN, raw_status="quarantined"), authoritative=True)
    assert change.order.state is OrderState.WORKING
    assert "'quarantined'" in change.warnings[0]


def test_cancel_request_alone_does_not_end_an_order() -> None:
    asked = mark_cancel_requested(apply_order(own_order(), order(), authoritative=True).order).order
    assert asked.cancel_requested
    assert asked.state is OrderState.WORKING
    assert mark_resent(asked).order is asked
