"""The life of an order, from the moment it was taken: when it fills, lapses, expires, is cancelled or replaced."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from finrl_pod.fake_alpaca import matching, rules
from finrl_pod.fake_alpaca.books import Books
from finrl_pod.fake_alpaca.checks import DayTrades
from finrl_pod.fake_alpaca.conditions import Conditions
from finrl_pod.fake_alpaca.orders import Order, Refusal, Ticket, shares, text
from finrl_pod.fake_alpaca.prices import Prices
from finrl_pod.fake_alpaca.sessions import Session, new_york
from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.fake_alpaca.timeline import Timeline

ON_THE_WAY = ("pending_cancel", "pending_replace")
_GTC = 90 * 86_400.0  # seconds
_EXTENDED_CLOSE = 20


class Life:
    """Sets down in the timeline what will happen to each order. carry_out: what is done when it is due, by kind."""

    def __init__(
        self, books: Books, prices: Prices, settings: Settings, conditions: Conditions, timeline: Timeline,
        day_trades: DayTrades,
    ) -> None:  # fmt: skip
        self._books = books
        self._prices = prices
        self._settings = settings
        self._conditions = conditions
        self._timeline = timeline
        self._day_trades = day_trades
        self.carry_out: dict[str, Callable[[str, float], None]] = {
            "new": self._on_new,
            "fill": self._on_fill,
            "again": self._on_again,
            "lapse": self._on_lapse,
            "expire": self._on_expire,
            "cancel": self._on_cancel,
            "replace": self._on_replace,
        }

    def session_for(self, moment: float) -> Session | None:
        """The session that an order sent at a moment is for: the open one, else the next; None past the calendar."""
        current = self._prices.sessions.current(moment)
        if current is not None:
            return current
        try:
            return self._prices.sessions.next_open(moment)
        except IndexError:
            return None

    def expiry(self, ticket: Ticket, moment: float) -> float:
        """When an order of that ticket, sent at a moment, ends if it has not filled; UTC epoch seconds."""
        session = self.session_for(moment)
        if session is None:
            raise Refusal(422, rules.RULE, "the panel of this stand-in has ended")
        if ticket.time_in_force == "gtc":
            last = self._prices.sessions.closed(moment + _GTC) or session
            return max(last.close, session.close)
        return session.at(_EXTENDED_CLOSE) if ticket.extended_hours else session.close

    def start(self, order: Order, moment: float) -> None:
        """The order is in the books: it becomes `new` now, or at the opening."""
        session = self.session_for(moment)
        assert session is not None
        self._timeline.add(max(moment, session.open) if order.status == "accepted" else moment, "new", order.id)
        if order.time_in_force in ("day", "gtc"):
            self._timeline.add(order.expires, "expire", order.id)

    def _on_new(self, order_id: str, moment: float) -> None:
        order = self._books.orders[order_id]
        if order.status in ("accepted", "pending_new"):
            order.status = "new"
            self._books.tell("new", order, moment)
        if order.open:
            self.plan(order, moment)

    def plan(self, order: Order, moment: float) -> None:
        """Look along the session's path for the moment at which the order fills, and set it down."""
        session = self.session_for(moment)
        if session is None:
            return
        path = None if self._stopped(order.symbol, session) else self._prices.path(order.symbol, session)
        if order.time_in_force in ("opg", "cls"):
            at = session.open if order.time_in_force == "opg" else session.close
            good = path is not None and matching.auction_fills(order, path)
            at = max(at, moment) + (self._conditions.fill_delay if good else 0.0)
            self._timeline.add(at, "fill" if good else "lapse", order.id)
            return
        start = max(moment, session.open)
        found = None if path is None else matching.first_execution(order, path, start)
        if order.time_in_force in ("ioc", "fok"):
            self._timeline.add(start, "fill" if found == start else "lapse", order.id)
            return
        if found is not None:
            self._timeline.add(found + self._conditions.fill_delay, "fill", order.id)
        elif order.time_in_force == "gtc" and session.close < order.expires:
            self._timeline.add(self._prices.sessions.next_open(session.open).open, "again", order.id)

    def _stopped(self, symbol: str, session: Session) -> bool:
        return symbol in self._conditions.halted or not self._prices.trades_on(symbol, session.date)

    def _on_again(self, order_id: str, moment: float) -> None:
        if self._books.orders[order_id].open:
            self.plan(self._books.orders[order_id], moment)

    def _on_lapse(self, order_id: str, moment: float) -> None:
        if self._books.orders[order_id].open:
            self.close(self._books.orders[order_id], "canceled", moment)

    def _on_expire(self, order_id: str, moment: float) -> None:
        if self._books.orders[order_id].open:
            self.close(self._books.orders[order_id], "expired", moment)

    def _on_cancel(self, order_id: str, moment: float) -> None:
        if self._books.orders[order_id].status == "pending_cancel":
            self.close(self._books.orders[order_id], "canceled", moment)

    def _on_replace(self, new_id: str, moment: float) -> None:
        new = self._books.orders[new_id]
        old = self._books.orders[str(new.replaces)]
        if not new.open:
            return
        if old.status != "pending_replace":
            # The original was filled, or went otherwise, before the replacement reached it.
            self.close(new, "rejected", moment)
            self._books.tell("order_replace_rejected", old, moment)
            return
        old.status, old.replaced_by = "replaced", new.id
        old.moments["replaced"] = old.updated = moment
        self._books.tell("replaced", old, moment)
        new.status = "pending_new"
        self.start(new, moment)

    def _on_fill(self, order_id: str, moment: float) -> None:
        """Fill the whole, or the first of two parts. An order that is being cancelled or replaced still fills."""
        order = self._books.orders[order_id]
        session = self._trading_day(order, moment)
        if not order.open or order.moments.get("filling", 0.0) > moment:
            return
        if session is None:
            return
        if order.symbol in self._conditions.halted:
            if order.time_in_force not in ("day", "gtc"):
                self.close(order, "canceled", moment)
            return
        path = self._prices.path(order.symbol, session)
        assert path is not None, "an order is only planned where the symbol has a bar"
        price = matching.fill_price(order, path, moment)
        left = order.remaining if order.notional is None else shares((order.notional - order.value) / price)
        if left <= 0:
            return
        quantity, gap = matching.first_part(order, left, self._conditions, self._settings.seed)
        self._book(order, quantity, price, moment, done=quantity >= left)
        if order.open:
            order.moments["filling"] = moment + gap
            self._timeline.add(moment + gap, "fill", order.id)

    def _trading_day(self, order: Order, moment: float) -> Session | None:
        """The session in which a fill at this moment happens; one at the close itself still belongs to it."""
        current = self._prices.sessions.current(moment)
        if current is not None:
            return current
        last = self._prices.sessions.closed(moment)
        return (
            last if last is not None and order.time_in_force == "cls" and last.date == new_york(moment).date() else None
        )

    def _book(self, order: Order, quantity: Decimal, price: Decimal, moment: float, *, done: bool) -> None:
        order.filled += quantity
        order.value += quantity * price
        pending = order.status if order.status in ON_THE_WAY else None
        order.status = "filled" if done else pending or "partially_filled"
        order.updated = moment
        if done:
            order.moments["filled"] = moment
        self._day_trades.note(order, moment)
        self._books.ledger.book_fill(order, quantity, price, moment, self._settings.cost_bps)
        self._books.tell(
            "fill" if done else "partial_fill",
            order,
            moment,
            price=text(price),
            qty=text(quantity),
            position_qty=text(self._books.ledger.qty(order.symbol)),
        )
        if done and pending == "pending_cancel":
            self._books.tell("order_cancel_rejected", order, moment)

    def close(self, order: Order, status: str, moment: float) -> None:
        """It ends here, with what it has filled."""
        order.status = status
        order.updated = moment
        order.moments["failed" if status == "rejected" else status] = moment
        self._books.tell(status, order, moment)
