"""State machine of one order: pure functions from the known state and a broker message to the new state.

    SENDING ──> WORKING ──> ENDED          at the broker; then filled, canceled, expired, replaced or rejected
       │ ├────> REFUSED                    the broker did not accept it
       │ └────> UNKNOWN ──> LOST           no answer; look-ups did not find it before its deadline
       └ from any state: a fill, or the order seen at the broker, leads to WORKING or ENDED

The order's cumulative filled quantity is authoritative: each fill is recorded once, for what it adds to that quantity,
in whatever order and however often it is reported. Recorded fills are never removed, and an ended order stays ended.
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


@dataclass(frozen=True)
class OrderView:
    """Known state of one order.

    filled: shares recorded. value: sum of their price times quantity. stale: the broker must be queried again.
    """

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


@dataclass(frozen=True)
class NewFill:
    """A fill to record: `quantity` more shares of an order, `cumulative_quantity` in total."""

    execution_id: str
    quantity: Decimal
    cumulative_quantity: Decimal
    price: Decimal
    time: datetime
    fee: Decimal = ZERO


@dataclass(frozen=True)
class Change:
    """New state of an order, fills to record, and warnings to raise as alerts."""

    view: OrderView
    fills: tuple[NewFill, ...] = ()
    warnings: tuple[str, ...] = ()


def apply_fill(view: OrderView, fill: Fill) -> Change:
    """Apply an execution. One that continues the recorded fills is recorded; one after a gap marks the view stale."""
    if fill.cumulative_quantity <= view.filled:
        return Change(view)
    if fill.cumulative_quantity - fill.quantity > view.filled:
        return Change(replace(view, stale=True))
    added = fill.cumulative_quantity - view.filled  # less than the fill if a part of it is recorded already
    fee = fill.fee * added / fill.quantity
    return _record_fill(view, NewFill(fill.id, added, fill.cumulative_quantity, fill.price, fill.time, fee))


def apply_order(view: OrderView, order: Order, *, authoritative: bool) -> Change:
    """Apply the order as the broker reports it.

    authoritative: from a REST query; shares filled beyond the recorded fills are recorded at the price that follows
    from the average. Otherwise (a stream message, which may be old) a difference only marks the view stale.
    """
    if order.symbol != view.symbol or order.side != view.side:
        warning = (
            f"order {view.client_order_id} is {view.side} {view.symbol} in the journal but {order.side} {order.symbol} "
            "at the broker: none of its fills were recorded"
        )
        return Change(view, warnings=(warning,))
    warnings: list[str] = []
    if order.status is OrderStatus.UNKNOWN:
        warnings.append(f"order {view.client_order_id} has the unknown status {order.raw_status!r}")
    known = replace(view, broker_id=view.broker_id or order.id)
    fills: tuple[NewFill, ...] = ()
    if order.filled_quantity > view.filled:
        if authoritative and order.filled_average_price is not None:
            total = order.filled_average_price * order.filled_quantity
            added = order.filled_quantity - view.filled
            price = ((total - view.value) / added).quantize(PRICE_STEP)
            name = f"{order.id}/{order.filled_quantity}"
            change = _record_fill(known, NewFill(name, added, order.filled_quantity, price, order.updated_at))
            known, fills = change.view, change.fills
            warnings += change.warnings
        else:
            known = replace(known, stale=True)
    elif authoritative:
        known = replace(known, stale=False)
    if view.state is OrderState.ENDED:  # an older message cannot reopen it
        return Change(known, fills, tuple(warnings))
    state = OrderState.ENDED if order.status.terminal else OrderState.WORKING
    if known.state is OrderState.ENDED:  # the new fill completed it
        state = OrderState.ENDED
    status = order.status if known.status is not OrderStatus.FILLED else known.status
    return Change(replace(known, state=state, status=status), fills, tuple(warnings))


def mark_rejected(view: OrderView) -> Change:
    """Mark an order that the broker did not accept. No effect if it was seen at the broker or has a fill."""
    if view.state in (OrderState.WORKING, OrderState.ENDED) or view.filled:
        return Change(view)
    return Change(replace(view, state=OrderState.REFUSED))


def mark_unknown(view: OrderView) -> Change:
    """Mark an order whose submission got no usable answer."""
    return Change(replace(view, state=OrderState.UNKNOWN)) if view.state is OrderState.SENDING else Change(view)


def mark_resent(view: OrderView) -> Change:
    """Mark an order that is sent again under its id, after look-ups did not find it."""
    return Change(replace(view, state=OrderState.SENDING)) if view.state is OrderState.UNKNOWN else Change(view)


def mark_lost(view: OrderView) -> Change:
    """Give up an order that the broker does not have. A fill that is reported later is still recorded."""
    return Change(replace(view, state=OrderState.LOST)) if view.state.may_fill else Change(view)


def mark_cancel_requested(view: OrderView) -> Change:
    """Mark a cancel request, before it is sent. Only the broker's report ends the order."""
    return Change(replace(view, cancel_requested=True))


def clear_cancel_request(view: OrderView) -> Change:
    """Clear an unanswered cancel request, so that it is sent again; a repeated cancel does no harm."""
    return Change(replace(view, cancel_requested=False))


def _record_fill(view: OrderView, fill: NewFill) -> Change:
    filled = fill.cumulative_quantity
    done = filled >= view.quantity
    warnings: tuple[str, ...] = ()
    if filled > view.quantity:
        warnings = (f"order {view.client_order_id} overfilled: {filled} shares of {view.quantity} {view.symbol}",)
    open_state = view.state if view.state is OrderState.ENDED else OrderState.WORKING
    after = replace(
        view,
        filled=filled,
        value=view.value + fill.quantity * fill.price,
        state=OrderState.ENDED if done else open_state,
        status=OrderStatus.FILLED if done else (
            view.status if view.state is OrderState.ENDED else OrderStatus.PARTIALLY_FILLED
        ),
        stale=False,
    )  # fmt: skip
    return Change(after, (fill,), warnings)
