"""What we know of one order: a pure function from what was known and what was heard to what is known now.

    SENDING ──> WORKING ──> ENDED          the broker has it; filled, canceled, expired, replaced or rejected by it
       │ ├────> REFUSED                    the broker definitely never took it
       │ └────> UNKNOWN ──> LOST           nobody answered; looked for in vain until its fill window was over
       └ any of them: a fill or a sight of the order at the broker moves it on to WORKING or ENDED

The order's cumulative filled quantity is the authority: a fill is booked for what it adds to that, once, in whatever
order and however often it is heard of. Nothing that was booked is taken back, and an order that ended stays ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from finrl_pod.paper.records import Fill, Order, OrderStatus, Side

ZERO = Decimal(0)
PRICE_STEP = Decimal("1e-8")  # a price that follows from an average is rounded to it


class OrderState(StrEnum):
    """Where an order stands between us and the broker."""

    SENDING = "sending"
    UNKNOWN = "unknown"
    WORKING = "working"
    ENDED = "ended"
    REFUSED = "refused"
    LOST = "lost"

    @property
    def may_fill(self) -> bool:
        """The order may be at the broker and fill: no second one for the same intent may be sent."""
        return self in (OrderState.SENDING, OrderState.UNKNOWN, OrderState.WORKING)


@dataclass(frozen=True)
class OrderView:
    """One order as we know it. filled: shares booked; value: their price times quantity. doubt: ask the broker anew."""

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
    doubt: bool = False

    @property
    def remaining(self) -> Decimal:
        """Shares that may still fill; none once the order cannot."""
        return max(self.quantity - self.filled, ZERO) if self.state.may_fill else ZERO


@dataclass(frozen=True)
class Booking:
    """Shares to book: `quantity` more of an order, which makes `cumulative_quantity`."""

    execution_id: str
    quantity: Decimal
    cumulative_quantity: Decimal
    price: Decimal
    time: datetime
    fee: Decimal = ZERO


@dataclass(frozen=True)
class Change:
    """What became of it, what to book, and what somebody should be told."""

    view: OrderView
    bookings: tuple[Booking, ...] = ()
    alarms: tuple[str, ...] = ()


def saw_fill(view: OrderView, fill: Fill) -> Change:
    """An execution was heard of. One that continues what is booked is booked; one after a gap only raises a doubt."""
    if fill.cumulative_quantity <= view.filled:
        return Change(view)
    if fill.cumulative_quantity - fill.quantity > view.filled:
        return Change(replace(view, doubt=True))
    added = fill.cumulative_quantity - view.filled  # less than the fill where a part of it was booked already
    fee = fill.fee * added / fill.quantity
    return _book(view, Booking(fill.id, added, fill.cumulative_quantity, fill.price, fill.time, fee))


def saw_order(view: OrderView, order: Order, *, settle: bool) -> Change:
    """The order was seen at the broker. settle: what it filled beyond our fills is booked at the price that follows
    from its average; without it (a message of the stream, which may be old) a difference only raises a doubt.
    """
    if order.symbol != view.symbol or order.side != view.side:
        alarm = (
            f"order {view.client_order_id} is {view.side} {view.symbol} here and {order.side} {order.symbol} at the "
            "broker: nothing of it was booked"
        )
        return Change(view, alarms=(alarm,))
    alarms: list[str] = []
    if order.status is OrderStatus.UNKNOWN:
        alarms.append(
            f"order {view.client_order_id} has the status {order.status_word!r}, which is new to this program"
        )
    known = replace(view, broker_id=view.broker_id or order.id)
    bookings: tuple[Booking, ...] = ()
    if order.filled_quantity > view.filled:
        if settle and order.filled_average_price is not None:
            total = order.filled_average_price * order.filled_quantity
            added = order.filled_quantity - view.filled
            price = ((total - view.value) / added).quantize(PRICE_STEP)
            name = f"{order.id}/{order.filled_quantity}"
            booked = _book(known, Booking(name, added, order.filled_quantity, price, order.updated_at))
            known, bookings = booked.view, booked.bookings
            alarms += booked.alarms
        else:
            known = replace(known, doubt=True)
    elif settle:
        known = replace(known, doubt=False)
    if view.state is OrderState.ENDED:  # an older message cannot bring it back
        return Change(known, bookings, tuple(alarms))
    state = OrderState.ENDED if order.status.terminal else OrderState.WORKING
    if known.state is OrderState.ENDED:  # the booking filled it
        state = OrderState.ENDED
    status = order.status if known.status is not OrderStatus.FILLED else known.status
    return Change(replace(known, state=state, status=status), bookings, tuple(alarms))


def was_refused(view: OrderView) -> Change:
    """The broker definitely did not take it. One that was seen there, or filled, is not refused by a late answer."""
    if view.state in (OrderState.WORKING, OrderState.ENDED) or view.filled:
        return Change(view)
    return Change(replace(view, state=OrderState.REFUSED))


def no_answer(view: OrderView) -> Change:
    """Nobody knows what became of it."""
    return Change(replace(view, state=OrderState.UNKNOWN)) if view.state is OrderState.SENDING else Change(view)


def sent_again(view: OrderView) -> Change:
    """The same id goes out once more, after look-ups that found nothing."""
    return Change(replace(view, state=OrderState.SENDING)) if view.state is OrderState.UNKNOWN else Change(view)


def was_lost(view: OrderView) -> Change:
    """Looked for in vain: nothing is expected of it any more. A fill that comes all the same is booked."""
    return Change(replace(view, state=OrderState.LOST)) if view.state.may_fill else Change(view)


def cancel_was_asked(view: OrderView) -> Change:
    """A cancel went out, or will; only the broker's word ends the order."""
    return Change(replace(view, cancel_requested=True))


def cancel_was_lost(view: OrderView) -> Change:
    """Nobody answered the cancel: it may not have arrived, and asking twice does no harm."""
    return Change(replace(view, cancel_requested=False))


def _book(view: OrderView, booking: Booking) -> Change:
    filled = booking.cumulative_quantity
    done = filled >= view.quantity
    alarms: tuple[str, ...] = ()
    if filled > view.quantity:
        alarms = (f"order {view.client_order_id} filled {filled} of {view.quantity} {view.symbol}: more than asked",)
    heard_of = view.state if view.state is OrderState.ENDED else OrderState.WORKING
    after = replace(
        view,
        filled=filled,
        value=view.value + booking.quantity * booking.price,
        state=OrderState.ENDED if done else heard_of,
        status=OrderStatus.FILLED if done else (
            view.status if view.state is OrderState.ENDED else OrderStatus.PARTIALLY_FILLED
        ),
        doubt=False,
    )  # fmt: skip
    return Change(after, (booking,), alarms)
