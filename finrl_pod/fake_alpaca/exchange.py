"""The simulated broker and its market: accepts, fills, cancels, expires and replaces orders in simulated time.

No function reads a clock: the same calls at the same times give the same result. Random numbers are drawn for each
client order id separately, so they do not depend on the order in which requests arrive.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca import order_validation as validation
from finrl_pod.fake_alpaca import wire_format as wire
from finrl_pod.fake_alpaca.account import Account, Balances, Ledger, Order, OrderTicket, compute_balances
from finrl_pod.fake_alpaca.order_lifecycle import PENDING_CHANGE, EventQueue, OrderLifecycle, ScheduledEvent
from finrl_pod.fake_alpaca.prices import Prices, new_york
from finrl_pod.fake_alpaca.settings import MarketConditions, Settings

_SPLIT_HOUR = 4  # New York time at which a split takes effect on its ex-date
_NOT_REPLACEABLE = ("accepted", "pending_new", *PENDING_CHANGE)


@dataclass
class ExchangeState:
    """Contents of the state file: the account, its orders, and the events that are due."""

    orders: list[Order]
    ledger: Ledger
    executions: int
    account_number: int
    last_stamp: int
    due: list[ScheduledEvent]
    now: float
    halted: set[str]
    untradable: set[str]
    whole_shares: set[str]


_STATE = TypeAdapter(ExchangeState)


class Exchange(Account):
    """One account at one exchange. Raises ApiError for every request that Alpaca would refuse.

    conditions: may be changed at any time. now: latest time it was advanced to, UTC epoch seconds.
    """

    def __init__(self, prices: Prices, settings: Settings, start: float) -> None:
        super().__init__(settings.cash, settings.seed)
        self.prices = prices
        self.settings = settings
        initial_conditions = ("fill_delay", "cancel_delay", "partial", "partial_gap")
        self.conditions = MarketConditions(**{name: getattr(settings, name) for name in initial_conditions})
        self.now = start
        self._queue = EventQueue()
        self._lifecycle = OrderLifecycle(self, prices, settings, self.conditions, self._queue)
        self._handlers: dict[str, Callable[[str, float], None]] = {
            **self._lifecycle.handlers,
            "close": self._on_close,
            "split": self._on_split,
        }
        for session in prices.sessions.all:
            if session.close > start and prices.row_of(session.date) is not None:
                self._queue.add(session.close, "close", session.date.isoformat())
        for number, action in enumerate(prices.actions):
            day = prices.sessions.on(date.fromisoformat(action.ex_date))
            if day is not None and action.kind == "split" and day.at(_SPLIT_HOUR) > start:
                self._queue.add(day.at(_SPLIT_HOUR), "split", str(number))

    def submit(self, body: Any, moment: float, origin: str = "client") -> Order:
        """Accept an order. Its status is `pending_new` during a session and `accepted` outside."""
        self.advance(moment)
        ticket = validation.parse_order(body, self.settings)
        exits = validation.parse_exits(body, ticket.order_class)
        if ticket.symbol not in self.prices.symbols:
            raise wire.unprocessable(f'asset "{ticket.symbol}" not found')
        self._check_unique(ticket.client_order_id)
        if self.conditions.is_suspended:
            raise wire.forbidden_order("new orders are rejected by user request")
        if not self.tradable(ticket.symbol, moment):
            raise wire.unprocessable(f'asset "{ticket.symbol}" is not tradable')
        if ticket.fractional and ticket.symbol in self.conditions.whole_shares:
            raise wire.forbidden_order(f'asset "{ticket.symbol}" is not fractionable')
        today = self.prices.sessions.on(new_york(moment).date())
        validation.check_auction_hours(ticket.time_in_force, moment, today)
        price = self.price(ticket.symbol, moment)
        validation.check_min_notional(ticket, price)
        order_price = price if ticket.limit_price is None else ticket.limit_price
        validation.check_exits(ticket, exits, order_price)
        expires = self._lifecycle.expiry(ticket, moment)
        order = self.create_order(ticket, moment, expires, order_price, origin)
        validation.check_wash_trade(order, self.open_orders())
        self._check_affordable(order, moment)
        if self.settings.day_trading_rule:
            equity = self.balances(moment).equity
            validation.check_day_trade(order, self.ledger.activities, self.prices.sessions, moment, equity)
        self.add_order(order)
        if self.prices.sessions.current(moment) is None:
            order.status = "accepted"
        legs = [self._add_leg(order, leg_ticket, moment) for leg_ticket in validation.leg_tickets(order, exits)]
        order.legs = [leg.id for leg in legs]
        self.publish_order_event("pending_new", order, moment)
        self._lifecycle.start(order, moment)
        if order.order_class == "oco":
            for leg in legs:
                self._lifecycle.watch(leg, moment)
        return order

    def _add_leg(self, parent: Order, ticket: OrderTicket, moment: float) -> Order:
        price = ticket.stop_price if ticket.limit_price is None else ticket.limit_price
        assert price is not None
        leg = self.create_order(ticket, moment, parent.expires, price, parent.origin)
        leg.parent = parent.id
        leg.status = "held"
        self.add_order(leg)
        return leg

    def cancel(self, order_id: str, moment: float) -> Order:
        """Request a cancel. It takes effect after `cancel_delay`, unless a fill comes first."""
        self.advance(moment)
        order = self.find(order_id)
        if not order.open or order.status in PENDING_CHANGE:
            raise wire.unprocessable(f'order is already in "{order.status}" state')
        order.status = "pending_cancel"
        self.publish_order_event("pending_cancel", order, moment)
        self._queue.add(moment + self.conditions.cancel_delay, "cancel", order.id)
        self.advance(moment)
        return order

    def replace(self, order_id: str, body: Any, moment: float) -> Order:
        """Request a replacement after `replace_delay`, unless the original ends before. Returns the new order."""
        self.advance(moment)
        original = self.find(order_id)
        if not original.open or original.status in _NOT_REPLACEABLE:
            raise wire.unprocessable(
                f'unable to replace order, order isn\'t in a replaceable state: "{original.status}"'
            )
        if not isinstance(body, Mapping) or not body:
            raise wire.invalid_parameter("at least one field must be replaced")
        if original.order_class != "simple":
            raise wire.invalid_parameter(f"{original.order_class} orders cannot be replaced on this fake server")
        if original.notional is not None:
            raise wire.invalid_parameter("notional orders cannot be replaced")
        qty, limit, stop = (
            number if (number := validation.parse_decimal(body, name)) is not None else getattr(original, name)
            for name in ("qty", "limit_price", "stop_price")
        )
        assert qty is not None
        if qty <= 0:
            raise wire.invalid_parameter("qty must be > filled qty")
        replacement = {
            **{f: getattr(original, f) for f in ("symbol", "side", "type", "extended_hours")},
            "qty": str(qty),
            "time_in_force": body.get("time_in_force") or original.time_in_force,
            "limit_price": wire.decimal_text(limit),
            "stop_price": wire.decimal_text(stop),
            "client_order_id": body.get("client_order_id"),
        }
        ticket = validation.parse_order(replacement, self.settings)
        self._check_unique(ticket.client_order_id)
        reserve = self.price(original.symbol, moment) if limit is None else limit
        new = self.create_order(ticket, moment, self._lifecycle.expiry(ticket, moment), reserve, original.origin)
        self._check_affordable(new, moment, instead_of=original)
        new.replaces = original.id
        self.add_order(new)
        original.status = "pending_replace"
        self.publish_order_event("pending_replace", original, moment)
        self._queue.add(moment + self.conditions.replace_delay, "replace", new.id)
        self.advance(moment)
        return new

    def price(self, symbol: str, moment: float) -> Decimal:
        """Raw price at a time. Raises ApiError before the first bar of the symbol."""
        value = self.prices.price_at(symbol, moment)
        if value is None:
            raise wire.unprocessable(f'asset "{symbol}" has no price')
        return wire.price_decimal(value)

    def tradable(self, symbol: str, moment: float) -> bool:
        """Whether the symbol has a bar in the current or next session and is not marked as untradable."""
        if symbol in self.conditions.untradable:
            return False
        session = self._lifecycle.session_for(moment)
        return session is not None and self.prices.trades_on(symbol, session.date)

    def balances(self, moment: float, without: Order | None = None) -> Balances:
        """Equity and buying power at the prices of a time, as if the order `without` did not exist."""
        prices = {s: self.price(s, moment) for s in self.ledger.holdings}
        open_orders = [o for o in self.open_orders() if o is not without and not o.is_held]
        return compute_balances(self.ledger, prices, open_orders, self.settings.multiplier)

    def reset(self, cash: Decimal, moment: float) -> None:
        """Reset the paper account: cancel all orders and start again with another account number and only cash."""
        self.advance(moment)
        for order in self.open_orders():
            if order.open:
                self._lifecycle.close(order, "canceled", moment)
        self.ledger = Ledger(cash, cash, cash, self._seed + self.account_number)
        self.account_number += 1
        self.publish(
            "account", {"event": "reset", "cash": wire.decimal_text(cash), "timestamp": wire.timestamp(moment)}
        )

    def book_activities(self, entries: Sequence[Mapping[str, Any]], moment: float) -> None:
        """Move cash and shares as the back office of the broker does: dividends, mergers, spin-offs, transfers.

        entries: one group, each with activity_type, net_amount, qty (signed shares) and symbol. Raises InputError for
        the type of a trade and for an unknown symbol, before anything is booked.
        """
        self.advance(moment)
        bookings = []
        for entry in entries:
            kind = str(entry["activity_type"])
            symbol = str(entry.get("symbol", ""))
            if kind == "FILL" or (symbol and symbol not in self.prices.symbols):
                raise InputError(f"activity {kind} of {symbol!r}: use another type than FILL and a symbol of the panel")
            qty, amount = (wire.parse_number(entry.get(name, 0)) for name in ("qty", "net_amount"))
            bookings.append((kind, symbol, qty, amount, self.price(symbol, moment) if symbol else Decimal(0)))
        group = str(uuid.uuid5(wire.ID_NAMESPACE, f"{self._seed}/group/{len(self.ledger.activities)}"))
        for booking in bookings:
            self.ledger.book_activity(*booking, moment, group)

    def resume(self, symbol: str, moment: float) -> None:
        """End a trading halt and reschedule the orders that were waiting."""
        self.advance(moment)
        self.conditions.halted_symbols.discard(symbol)
        for order in self.open_orders():
            if order.symbol == symbol and order.status in ("new", "partially_filled"):
                self._lifecycle.schedule_fill(order, moment)

    def _check_unique(self, client_order_id: str) -> None:
        if client_order_id in self.by_client_id:
            raise wire.ApiError(422, self.settings.duplicate_code, "client_order_id must be unique")

    def _check_affordable(self, order: Order, moment: float, instead_of: Order | None = None) -> None:
        shares_held = self.ledger.qty(order.symbol)
        if order.side == "sell" and shares_held > 0:
            released_shares = instead_of.remaining if instead_of else 0
            validation.check_available_shares(order, shares_held, self.available(order.symbol) + released_shares)
            return
        if order.side == "sell":
            validation.check_short_sale(order, allowed=self.settings.shorting)
        validation.check_buying_power(order, shares_held, self.balances(moment, without=instead_of).buying_power)

    def next_due(self) -> float | None:
        """Time of the next scheduled event, or None."""
        return self._queue.events[0].moment if self._queue.events else None

    def advance(self, moment: float) -> None:
        """Carry out every event due by a time, in order. A time before `now` changes nothing."""
        while (due := self.next_due()) is not None and due <= moment:
            event = heapq.heappop(self._queue.events)
            self.now = max(self.now, event.moment)
            self._handlers[event.kind](event.name, event.moment)
        self.now = max(self.now, moment)

    def _on_close(self, _: str, moment: float) -> None:
        self.ledger.last_equity = self.balances(moment).equity
        self.ledger.closes.append((moment, self.ledger.last_equity))
        event = {
            "event": "close",
            "equity": wire.decimal_text(self.ledger.last_equity),
            "cash": wire.decimal_text(self.ledger.cash),
            "held": {s: wire.decimal_text(h.qty) for s, h in sorted(self.ledger.holdings.items())},
            "timestamp": wire.timestamp(moment),
        }
        self.publish("account", event)

    def _on_split(self, number: str, moment: float) -> None:
        """Cancel open orders of the symbol and multiply its shares."""
        action = self.prices.actions[int(number)]
        for order in self.open_orders():
            if order.open and order.symbol == action.symbol:
                self._lifecycle.close(order, "canceled", moment)
        ratio = Decimal(repr(action.new)) / Decimal(repr(action.old))
        self.ledger.book_split(action.symbol, ratio, moment)
        event = {"event": "split", "symbol": action.symbol, "ratio": wire.decimal_text(ratio)}
        self.publish("account", {**event, "timestamp": wire.timestamp(moment)})

    def state(self) -> dict[str, Any]:
        """State needed to restart the server, as JSON values."""
        state = ExchangeState(
            orders=list(self.orders.values()),
            ledger=self.ledger,
            executions=self._executions,
            account_number=self.account_number,
            last_stamp=self._last_stamp,
            due=self._queue.events,
            now=self.now,
            halted=self.conditions.halted_symbols,
            untradable=self.conditions.untradable,
            whole_shares=self.conditions.whole_shares,
        )
        values: dict[str, Any] = _STATE.dump_python(state, mode="json")
        return values

    def restore(self, values: object) -> None:
        """Load what `state` returned. Raises InputError if the values are damaged."""
        try:
            state = _STATE.validate_python(values)
        except ValueError:
            raise InputError("the fake server's state file is damaged; delete it or use another --state file") from None
        for order in state.orders:
            self.add_order(order)
        self._open = {order.id: order for order in state.orders if order.open}
        self.ledger = state.ledger
        self._executions = state.executions
        self.account_number = state.account_number
        self._last_stamp = state.last_stamp
        self._queue.events = state.due
        self._queue.count = max((event.number for event in state.due), default=0)
        self.now = state.now
        self.conditions.halted_symbols = state.halted
        self.conditions.untradable = state.untradable
        self.conditions.whole_shares = state.whole_shares
