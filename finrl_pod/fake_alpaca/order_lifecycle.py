"""Life cycle of an accepted order: it becomes new, fills, expires, is cancelled or replaced."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import NamedTuple
from zlib import crc32

import numpy as np

from finrl_pod.fake_alpaca.account import Account, Order, OrderTicket
from finrl_pod.fake_alpaca.prices import Prices, Session, new_york
from finrl_pod.fake_alpaca.settings import MarketConditions, Settings
from finrl_pod.fake_alpaca.wire_format import decimal_text, floor_shares, price_decimal, unprocessable
from finrl_pod.random import key

PENDING_CHANGE = ("pending_cancel", "pending_replace")
_GTC_SECONDS = 90 * 86_400.0  # a gtc order expires after 90 days
_EXTENDED_CLOSE_HOUR = 20  # New York time
_MIN_FIRST_PART = 0.1  # the first of two parts is 10% to 90% of an order
_FIRST_PART_RANGE = 0.8

PricePath = list[tuple[float, float]]  # corners: UTC epoch seconds, raw price


class ScheduledEvent(NamedTuple):
    """moment: UTC epoch seconds. number: order of scheduling. kind: kind of event. name: order, session or action."""

    moment: float
    number: int
    kind: str
    name: str


class EventQueue:
    """A heap of scheduled events by time, then by the order in which they were added."""

    def __init__(self) -> None:
        self.events: list[ScheduledEvent] = []
        self.count = 0  # of events ever scheduled

    def add(self, moment: float, kind: str, name: str) -> None:
        """Schedule an event."""
        self.count += 1
        heapq.heappush(self.events, ScheduledEvent(moment, self.count, kind, name))


class OrderLifecycle:
    """Schedules and carries out the events of orders. handlers: what to call for each kind of event when it is due."""

    def __init__(
        self, account: Account, prices: Prices, settings: Settings, conditions: MarketConditions, queue: EventQueue
    ) -> None:
        self._account = account
        self._prices = prices
        self._settings = settings
        self._conditions = conditions
        self._queue = queue
        self.handlers: dict[str, Callable[[str, float], None]] = {
            "new": self._on_new,
            "fill": self._on_fill,
            "again": self._on_new,
            "lapse": partial(self._on_end, "canceled"),
            "expire": partial(self._on_end, "expired"),
            "cancel": self._on_cancel,
            "replace": self._on_replace,
        }

    def session_for(self, moment: float) -> Session | None:
        """Session that an order sent at a time is for: the open one, else the next; None after the last session."""
        current = self._prices.sessions.current(moment)
        if current is not None:
            return current
        try:
            return self._prices.sessions.next_open(moment)
        except IndexError:
            return None

    def expiry(self, ticket: OrderTicket, moment: float) -> float:
        """Time at which an order sent now expires, UTC epoch seconds. Raises ApiError after the end of the panel."""
        session = self.session_for(moment)
        if session is None:
            raise unprocessable("the panel of this fake server has ended")
        if ticket.time_in_force == "gtc":
            last = self._prices.sessions.last_closed(moment + _GTC_SECONDS) or session
            return max(last.close, session.close)
        return session.at(_EXTENDED_CLOSE_HOUR) if ticket.extended_hours else session.close

    def start(self, order: Order, moment: float) -> None:
        """Schedule the first events of an order: it becomes `new` now or at the open, and expires later."""
        session = self.session_for(moment)
        assert session is not None
        self._queue.add(max(moment, session.open) if order.status == "accepted" else moment, "new", order.id)
        if order.time_in_force in ("day", "gtc"):
            self._queue.add(order.expires, "expire", order.id)

    def schedule_fill(self, order: Order, moment: float) -> None:
        """Schedule the order outcome on the session price path: a fill, a lapse, or a retry next session."""
        session = self.session_for(moment)
        if session is None:
            return
        is_halted = order.symbol in self._conditions.halted_symbols
        path = None if is_halted else self._prices.path(order.symbol, session)
        if order.time_in_force in ("opg", "cls"):
            auction = session.open if order.time_in_force == "opg" else session.close
            fills = path is not None and fills_in_auction(order, path)
            due = max(auction, moment) + (self._conditions.fill_delay if fills else 0.0)
            self._queue.add(due, "fill" if fills else "lapse", order.id)
            return
        start = max(moment, session.open)
        execution_time = None if path is None else first_execution(order, path, start)
        if order.time_in_force in ("ioc", "fok"):
            self._queue.add(start, "fill" if execution_time == start else "lapse", order.id)
            return
        if execution_time is not None:
            self._queue.add(execution_time + self._conditions.fill_delay, "fill", order.id)
        elif order.time_in_force == "gtc" and session.close < order.expires:
            self._queue.add(self._prices.sessions.next_open(session.open).open, "again", order.id)

    def close(self, order: Order, status: str, moment: float) -> None:
        """End an order with a final status; its fills remain."""
        order.status = status
        order.updated_at = moment
        order.moments["failed" if status == "rejected" else status] = moment
        self._account.publish_order_event(status, order, moment)
        self._update_related_orders(order, moment)

    def watch(self, order: Order, moment: float) -> None:
        """Schedule the fill and the expiry of an exit. It may stay `held` until its price is reached."""
        self.schedule_fill(order, moment)
        self._queue.add(order.expires, "expire", order.id)

    def _update_related_orders(self, order: Order, moment: float) -> None:
        """Activate the exits of a filled entry; otherwise cancel the other orders of the order that ended."""
        parent = order if order.parent is None else self._account.orders[order.parent]
        legs = [self._account.orders[leg_id] for leg_id in parent.legs]
        if order is parent and order.status == "filled" and order.order_class in ("bracket", "oto"):
            for leg in legs:
                if not leg.open:
                    continue
                if leg.type == "limit":
                    leg.status = "new"
                    self._account.publish_order_event("new", leg, moment)
                self.watch(leg, moment)
            return
        for other in (parent, *legs):
            if other.open and other is not order:
                self.close(other, "canceled", moment)

    def _on_new(self, order_id: str, moment: float) -> None:
        order = self._account.orders[order_id]
        if order.status in ("accepted", "pending_new"):
            order.status = "new"
            self._account.publish_order_event("new", order, moment)
        if order.open:
            self.schedule_fill(order, moment)

    def _on_end(self, status: str, order_id: str, moment: float) -> None:
        if self._account.orders[order_id].open:
            self.close(self._account.orders[order_id], status, moment)

    def _on_cancel(self, order_id: str, moment: float) -> None:
        if self._account.orders[order_id].status == "pending_cancel":
            self.close(self._account.orders[order_id], "canceled", moment)

    def _on_replace(self, new_id: str, moment: float) -> None:
        replacement = self._account.orders[new_id]
        original = self._account.orders[str(replacement.replaces)]
        if not replacement.open:
            return
        if original.status != "pending_replace":
            # The original was filled, or ended otherwise, before the replacement took effect.
            self.close(replacement, "rejected", moment)
            self._account.publish_order_event("order_replace_rejected", original, moment)
            return
        original.status = "replaced"
        original.replaced_by = replacement.id
        original.moments["replaced"] = original.updated_at = moment
        self._account.publish_order_event("replaced", original, moment)
        replacement.status = "pending_new"
        self.start(replacement, moment)

    def _on_fill(self, order_id: str, moment: float) -> None:
        """Fill an order wholly or in its first part. Orders with a pending cancel or replacement still fill."""
        order = self._account.orders[order_id]
        session = self._session_of_fill(order, moment)
        if session is None or not order.open or order.moments.get("filling", 0.0) > moment:
            return
        if order.symbol in self._conditions.halted_symbols:
            if order.time_in_force not in ("day", "gtc"):
                self.close(order, "canceled", moment)
            return
        path = self._prices.path(order.symbol, session)
        assert path is not None, "fills are only scheduled where the symbol has a bar"
        price = fill_price(order, path, moment)
        left = order.remaining if order.notional is None else floor_shares((order.notional - order.value) / price)
        if left <= 0:
            return
        quantity, gap = first_part(order, left, self._conditions, self._settings.seed)
        self._book_fill(order, quantity, price, moment, complete=quantity >= left)
        if order.open:
            order.moments["filling"] = moment + gap
            self._queue.add(moment + gap, "fill", order.id)

    def _session_of_fill(self, order: Order, moment: float) -> Session | None:
        """Session to which a fill at this time belongs; one at the close itself still belongs to that session."""
        current = self._prices.sessions.current(moment)
        if current is not None:
            return current
        last = self._prices.sessions.last_closed(moment)
        closing = last is not None and order.time_in_force == "cls" and last.date == new_york(moment).date()
        return last if closing else None

    def _book_fill(self, order: Order, quantity: Decimal, price: Decimal, moment: float, *, complete: bool) -> None:
        order.filled += quantity
        order.value += quantity * price
        pending = order.status if order.status in PENDING_CHANGE else None
        order.status = "filled" if complete else pending or "partially_filled"
        order.updated_at = moment
        if complete:
            order.moments["filled"] = moment
        self._account.ledger.book_fill(order, quantity, price, moment, self._settings.cost_bps)
        self._account.publish_order_event(
            "fill" if complete else "partial_fill",
            order,
            moment,
            price=decimal_text(price),
            qty=decimal_text(quantity),
            position_qty=decimal_text(self._account.ledger.qty(order.symbol)),
        )
        if complete and pending == "pending_cancel":
            self._account.publish_order_event("order_cancel_rejected", order, moment)
        if complete:
            self._update_related_orders(order, moment)


# ---- matching: when an order fills, at what price and in how many parts ----------------------------------------------


def fills_in_auction(order: Order, path: PricePath) -> bool:
    """Whether the limit of an order for the opening or closing auction allows it to fill there."""
    price = auction_price(order, path)
    if order.limit_price is None:
        return True
    return price <= order.limit_price if order.side == "buy" else price >= order.limit_price


def auction_price(order: Order, path: PricePath) -> Decimal:
    """The opening price for opg, the closing price for cls."""
    return price_decimal(path[0 if order.time_in_force == "opg" else -1][1])


def first_execution(order: Order, path: PricePath, start: float) -> float | None:
    """First time from `start` on at which stop and limit allow the order to trade; None if there is none."""
    begin: float | None = start
    if order.stop_price is not None:
        begin = first_crossing(path, start, float(order.stop_price), falling=order.side == "sell")
    if begin is not None and order.limit_price is not None:
        begin = first_crossing(path, begin, float(order.limit_price), falling=order.side == "buy")
    return begin


def first_crossing(path: PricePath, start: float, level: float, *, falling: bool) -> float | None:
    """First time from `start` on at which the path is at or below (falling) or at or above a level; None if never."""
    for (t0, p0), (t1, p1) in itertools.pairwise(path):
        if t1 < start:
            continue
        if t0 < start:
            p0 = p0 + (p1 - p0) * (start - t0) / (t1 - t0)
            t0 = start
        if (p0 <= level) if falling else (p0 >= level):
            return t0
        if (p1 <= level) if falling else (p1 >= level):
            return t0 + (t1 - t0) * (level - p0) / (p1 - p0)
    return None


def fill_price(order: Order, path: PricePath, moment: float) -> Decimal:
    """Fill price: auction price for opg and cls orders, otherwise the price on the path, or a better limit."""
    if order.time_in_force in ("opg", "cls"):
        return auction_price(order, path)
    price = price_decimal(float(np.interp(moment, [t for t, _ in path], [p for _, p in path])))
    if order.limit_price is None:
        return price
    return min(price, order.limit_price) if order.side == "buy" else max(price, order.limit_price)


def first_part(order: Order, left: Decimal, conditions: MarketConditions, seed: int) -> tuple[Decimal, float]:
    """(shares that fill first, simulated seconds until the rest fills); the second is 0 if the order fills at once.

    left: shares still to fill. The draw depends only on the seed and the client order id.
    """
    if order.filled or order.order_class != "simple":  # two exits must not fill in part
        return left, 0.0
    rng = np.random.default_rng(key(seed, crc32(order.client_order_id.encode()), "partial fills"))
    partial, share, gap = rng.random(3)
    if partial >= conditions.partial:
        return left, 0.0
    first_quantity = left * Decimal(repr(_MIN_FIRST_PART + _FIRST_PART_RANGE * float(share)))
    is_whole = order.qty is not None and order.qty % 1 == 0
    quantity = first_quantity.to_integral_value() if is_whole else floor_shares(first_quantity)
    return (quantity, float(gap) * conditions.partial_gap) if 0 < quantity < left else (left, 0.0)
