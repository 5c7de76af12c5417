"""State machine of one order: pure functions from the known state and a broker message to the new state.

    SENDING ──> WORKING ──> ENDED          at the broker; then filled, canceled, expired, replaced or rejected
       │ ├────> REFUSED                    the broker did not accept it
       │ └────> UNKNOWN ──> LOST           no answer; look-ups did not find it before its deadline
       └ from any state: a fill, or the order seen at the broker, leads to WORKING or ENDED

The cumulative filled quantity of an order is authoritative: each fill is recorded once, for what it adds to that
quantity, in whatever order and however often it is reported. Recorded fills are never removed, and an ended order
stays ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from finrl_pod.paper.domain.records import Fill, Order, OrderStatus, Side

ZERO = Decimal(0)
PRICE_STEP = Decimal("1e-8")  # rounding of a price derived from an average


class OrderState(StrEnum):
    """Lifecycle state of an order between the daemon and the broker."""

    SENDING = "sending"
    UNKNOWN = "unknown"
    WORKING = "working"
    ENDED = "ended"
    REFUSED = "refused"
    LOST = "lost"

    @property
    def may_fill(self) -> bool:
        """True if the order may be at the broker and fill, so that its intent may have no second order."""
        return self in (OrderState.SENDING, OrderState.UNKNOWN, OrderState.WORKING)


@dataclass
class TrackedOrder:
    """An own order: its terms, its place in the journal, and its state as far as it is known.

    id: row in the journal. attempt: number among the orders of its intent, from 0. run: run of the intent. sent_at:
    time of the first submission. filled: recorded shares. value: sum of price times quantity over the recorded fills.
    stale: the broker must be queried again.

    The functions of this module return a changed copy. The ledger passes it to `update` once it is in the journal.
    """

    id: int
    attempt: int
    run: str
    sent_at: datetime
    client_order_id: str
    symbol: str
    side: Side
    quantity: Decimal
    state: OrderState = OrderState.SENDING
    broker_id: str = ""
    status: OrderStatus = OrderStatus.UNKNOWN
    filled: Decimal = ZERO
    value: Decimal = ZERO
    cancel_requested: bool = False
    stale: bool = False

    @property
    def remaining(self) -> Decimal:
        """Shares that may still fill, 0 if the order cannot fill any more."""
        return max(self.quantity - self.filled, ZERO) if self.state.may_fill else ZERO

    def update(self, changed: TrackedOrder) -> None:
        """Take over all fields of a changed copy."""
        vars(self).update(vars(changed))


@dataclass(frozen=True)
class Change:
    """An order in its new state, what its new fills add to the recorded ones, and warnings to raise as alerts."""

    order: TrackedOrder
    fills: tuple[Fill, ...] = ()
    warnings: tuple[str, ...] = ()


def apply_fill(order: TrackedOrder, fill: Fill) -> Change:
    """Apply an execution. One that continues the recorded fills is recorded; one after a gap marks the order stale."""
    if fill.cumulative_quantity <= order.filled:
        return Change(order)
    if fill.cumulative_quantity - fill.quantity > order.filled:
        return Change(replace(order, stale=True))
    added_quantity = fill.cumulative_quantity - order.filled  # less than the fill if a part of it is recorded already
    fee = fill.fee * added_quantity / fill.quantity
    return _record_fill(order, replace(fill, quantity=added_quantity, fee=fee))


def apply_order(order: TrackedOrder, report: Order, *, authoritative: bool) -> Change:
    """Apply an order as the broker reports it.

    authoritative: True for the answer to a REST query; shares filled beyond the recorded fills are recorded at the
    price that follows from the average. Otherwise (a stream message may be old) a difference only marks the order
    stale.
    """
    if report.symbol != order.symbol or report.side != order.side:
        warning = (
            f"order {order.client_order_id} is {order.side} {order.symbol} in the journal but {report.side} "
            f"{report.symbol} at the broker: none of its fills were recorded"
        )
        return Change(order, warnings=(warning,))
    warnings: list[str] = []
    if report.status is OrderStatus.UNKNOWN:
        warnings.append(f"order {order.client_order_id} has the unknown status {report.raw_status!r}")
    current = replace(order, broker_id=order.broker_id or report.id)
    fills: tuple[Fill, ...] = ()
    if report.filled_quantity > order.filled:
        if authoritative and report.filled_average_price is not None:
            total = report.filled_average_price * report.filled_quantity
            added_quantity = report.filled_quantity - order.filled
            price = ((total - order.value) / added_quantity).quantize(PRICE_STEP)
            filled = report.filled_quantity
            name = f"{report.id}/{filled}"
            fill = Fill(
                name, report.id, order.symbol, order.side, added_quantity, filled, price, report.updated_at
            )  # fmt: skip
            change = _record_fill(current, fill)
            current = change.order
            fills = change.fills
            warnings += change.warnings
        else:
            current = replace(current, stale=True)
    elif authoritative:
        current = replace(current, stale=False)
    if order.state is OrderState.ENDED:  # an older message cannot reopen it
        return Change(current, fills, tuple(warnings))
    state = OrderState.ENDED if report.status.terminal else OrderState.WORKING
    if current.state is OrderState.ENDED:  # the new fill completed it
        state = OrderState.ENDED
    status = report.status if current.status is not OrderStatus.FILLED else current.status
    return Change(replace(current, state=state, status=status), fills, tuple(warnings))


def mark_rejected(order: TrackedOrder) -> Change:
    """Mark an order that the broker did not accept. No effect if it was seen at the broker or has a fill."""
    if order.state in (OrderState.WORKING, OrderState.ENDED) or order.filled:
        return Change(order)
    return Change(replace(order, state=OrderState.REFUSED))


def mark_unknown(order: TrackedOrder) -> Change:
    """Mark an order whose submission got no usable answer."""
    return Change(replace(order, state=OrderState.UNKNOWN)) if order.state is OrderState.SENDING else Change(order)


def mark_resent(order: TrackedOrder) -> Change:
    """Mark an order that is sent again under its id, after look-ups did not find it."""
    return Change(replace(order, state=OrderState.SENDING)) if order.state is OrderState.UNKNOWN else Change(order)


def mark_lost(order: TrackedOrder) -> Change:
    """Give up an order that the broker does not have. A fill that is reported later is still recorded."""
    return Change(replace(order, state=OrderState.LOST)) if order.state.may_fill else Change(order)


def mark_cancel_requested(order: TrackedOrder, *, requested: bool = True) -> Change:
    """Mark a cancel request before it is sent, or clear an unanswered one so that it is repeated, without harm."""
    return Change(replace(order, cancel_requested=requested))


def _record_fill(order: TrackedOrder, fill: Fill) -> Change:
    filled = fill.cumulative_quantity
    is_complete = filled >= order.quantity
    warnings: tuple[str, ...] = ()
    if filled > order.quantity:
        warnings = (f"order {order.client_order_id} overfilled: {filled} shares of {order.quantity} {order.symbol}",)
    state = OrderState.ENDED if is_complete or order.state is OrderState.ENDED else OrderState.WORKING
    status = order.status if order.state is OrderState.ENDED else OrderStatus.PARTIALLY_FILLED
    if is_complete:
        status = OrderStatus.FILLED
    value = order.value + fill.quantity * fill.price
    changed_order = replace(order, filled=filled, value=value, state=state, status=status, stale=False)
    return Change(changed_order, (fill,), warnings)
