"""The broker and its market in simulated time: takes orders, fills, cancels, expires and replaces them.

Nothing here reads a clock: every call is handed the moment, and `advance` carries out what fell due by then, in order.
Given the same calls at the same moments the result is the same; what is random is drawn for each client_order_id alone,
so it does not depend on the order in which requests arrive.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from finrl_pod.errors import InputError
from finrl_pod.paper.fake_alpaca import checks, matching, rules
from finrl_pod.paper.fake_alpaca.conditions import Conditions
from finrl_pod.paper.fake_alpaca.ledger import Ledger, Means, means
from finrl_pod.paper.fake_alpaca.orders import NAMESPACE, Order, Refusal, amount, shares, text
from finrl_pod.paper.fake_alpaca.prices import Prices
from finrl_pod.paper.fake_alpaca.sessions import Session, new_york, stamp
from finrl_pod.paper.fake_alpaca.settings import Settings
from finrl_pod.paper.fake_alpaca.timeline import Timeline

_MICROS = 1_000_000  # a second; the stamps of two orders differ by one at least, however fast they arrive
_GTC = 90 * 86_400.0  # seconds
_ACTIONS_HOUR = 4
_EXTENDED_CLOSE = 20
_ON_THE_WAY = ("pending_cancel", "pending_replace")

Listener = Callable[[str, dict[str, Any]], None]


class Exchange:
    """One account at one exchange. Raises Refusal for whatever Alpaca would refuse.

    listen: called with "order" or "account" and the event, in the order in which they happen.
    """

    def __init__(self, prices: Prices, settings: Settings, start: float) -> None:
        self.prices = prices
        self.settings = settings
        self.conditions = Conditions(fill_delay=settings.fill_delay, cancel_delay=settings.cancel_delay)
        self.ledger = Ledger(settings.cash, settings.seed)
        self.orders: dict[str, Order] = {}
        self.by_client_id: dict[str, Order] = {}
        self._live: dict[str, Order] = {}
        self.listeners: list[Listener] = []
        self.account_number = 1
        self.day_trades = checks.DayTrades(prices.sessions)
        self._timeline = Timeline()
        self._executions = 0
        self._stamp = 0
        self.now = start
        self._carry_out: dict[str, Callable[[str, float], None]] = {
            "new": self._on_new,
            "fill": self._on_fill,
            "again": self._on_again,
            "lapse": self._on_lapse,
            "expire": self._on_expire,
            "cancel": self._on_cancel,
            "replace": self._on_replace,
            "close": self._on_close,
            "split": self._on_split,
        }
        self._schedule_days(start)

    # ---- what clients ask for -------------------------------------------------------------------------------------

    def submit(self, body: Any, moment: float, origin: str = "client") -> Order:
        """Take an order. The answer's status is `pending_new` in a session and `accepted` outside."""
        self.advance(moment)
        ticket = rules.read(body, self.settings)
        if not self.prices.knows(ticket.symbol):
            raise Refusal(422, rules.RULE, f'asset "{ticket.symbol}" not found')
        if ticket.client_order_id in self.by_client_id:
            raise Refusal(422, self.settings.duplicate_code, "client_order_id must be unique")
        if self.conditions.suspended:
            raise Refusal(403, rules.FORBIDDEN, "new orders are rejected by user request")
        if not self.tradable(ticket.symbol, moment):
            raise Refusal(422, rules.RULE, f'asset "{ticket.symbol}" is not tradable')
        rules.check_hours(ticket.time_in_force, moment, self.prices.sessions.on(new_york(moment).date()))
        price = self.price(ticket.symbol, moment)
        rules.check_smallest(ticket, price)
        order = self._made(ticket, moment, ticket.limit_price or price, origin)
        checks.check_wash(order, self.open_orders())
        self._check_means(order, moment)
        if self.settings.old_day_trading:
            self.day_trades.check(order, moment, self.means(moment).equity)
        self._add(order)
        if self.prices.sessions.current(moment) is None:
            order.status = "accepted"
        self._tell("pending_new", order, moment)
        self._start(order, moment)
        return order

    def find(self, order_id: str) -> Order:
        order = self.orders.get(order_id)
        if order is None:
            raise Refusal(404, 40410000, f"order not found for {order_id}")
        return order

    def find_client(self, client_order_id: str) -> Order:
        order = self.by_client_id.get(client_order_id)
        if order is None:
            raise Refusal(404, 40410000, f"order not found for {client_order_id}")
        return order

    def cancel(self, order_id: str, moment: float) -> Order:
        """Ask for a cancel. It goes through after `cancel_delay`; a fill that comes first wins."""
        self.advance(moment)
        order = self.find(order_id)
        if not order.open or order.status in _ON_THE_WAY:
            raise Refusal(422, rules.RULE, f'order is already in "{order.status}" state')
        order.status = "pending_cancel"
        self._tell("pending_cancel", order, moment)
        self._timeline.add(moment + self.conditions.cancel_delay, "cancel", order.id)
        self.advance(moment)
        return order

    def replace(self, order_id: str, body: Any, moment: float) -> Order:
        """Ask for a replacement and get the new order; it takes the old one's place after `replace_delay`, or fails."""
        self.advance(moment)
        old = self.find(order_id)
        if not old.open or old.status in ("accepted", "pending_new", "pending_cancel", "pending_replace"):
            raise Refusal(
                422, rules.RULE, f'unable to replace order, order isn\'t in a replaceable state: "{old.status}"'
            )
        if not isinstance(body, Mapping) or not body:
            raise Refusal(422, rules.PARAMETER, "at least one field must be replaced")
        if old.notional is not None:
            raise Refusal(422, rules.PARAMETER, "notional orders cannot be replaced")
        qty = rules.number(body, "qty") or old.qty
        assert qty is not None
        if self.settings.replace_counts_filled:
            qty -= old.filled
        if qty <= 0:
            raise Refusal(422, rules.PARAMETER, "qty must be > filled qty")
        same = {f: getattr(old, f) for f in ("symbol", "side", "type", "extended_hours")}
        limit = rules.number(body, "limit_price") or old.limit_price
        stop = rules.number(body, "stop_price") or old.stop_price
        changed = {
            **same,
            "qty": str(qty),
            "time_in_force": body.get("time_in_force") or old.time_in_force,
            "limit_price": text(limit),
            "stop_price": text(stop),
            "client_order_id": body.get("client_order_id"),
        }
        ticket = rules.read(changed, self.settings)
        if ticket.client_order_id in self.by_client_id:
            raise Refusal(422, self.settings.duplicate_code, "client_order_id must be unique")
        new = self._made(ticket, moment, limit or self.price(old.symbol, moment), old.origin)
        self._check_means(new, moment, instead_of=old)
        new.replaces = old.id
        self._add(new)
        old.status = "pending_replace"
        self._tell("pending_replace", old, moment)
        self._timeline.add(moment + self.conditions.replace_delay, "replace", new.id)
        self.advance(moment)
        return new

    def open_orders(self) -> list[Order]:
        return list(self._live.values())

    def price(self, symbol: str, moment: float) -> Decimal:
        """The raw price at a moment. Raises Refusal before the symbol's first bar."""
        value = self.prices.at(symbol, moment)
        if value is None:
            raise Refusal(422, rules.RULE, f'asset "{symbol}" has no price')
        return amount(value)

    def tradable(self, symbol: str, moment: float) -> bool:
        """Not stopped by a test, and with a bar in the panel on the day at hand or the next session."""
        if symbol in self.conditions.untradable:
            return False
        session = self._session_for(moment)
        return session is not None and self.prices.trades_on(symbol, session.date)

    def means(self, moment: float, without: Order | None = None) -> Means:
        """Equity and buying power at the prices of a moment."""
        prices = {s: self.price(s, moment) for s in self.ledger.holdings}
        return means(self.ledger, prices, [o for o in self.open_orders() if o is not without], self.settings.multiplier)

    def available(self, symbol: str) -> Decimal:
        """Shares held that no open order on the closing side has a claim on."""
        held = self.ledger.qty(symbol)
        claimed = (o.remaining for o in self.open_orders() if o.symbol == symbol and o.sign * held < 0)
        return max(abs(held) - sum(claimed, Decimal(0)), Decimal(0))

    def reset(self, cash: Decimal, moment: float) -> None:
        """What the button of a paper account does: another account number, all orders gone, all cash again."""
        self.advance(moment)
        for order in self.open_orders():
            self._close(order, "canceled", moment)
        self.ledger = Ledger(cash, self.settings.seed + self.account_number)
        self.account_number += 1
        self._hear("account", {"event": "reset", "cash": text(cash), "timestamp": stamp(moment)})

    # ---- time -----------------------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """When something will happen next, or None."""
        return self._timeline.next

    def advance(self, moment: float) -> None:
        """Carry out everything due by `moment`; an earlier moment than before changes nothing."""
        while (due := self._timeline.take(moment)) is not None:
            self.now = max(self.now, due.moment)
            self._carry_out[due.what](due.name, due.moment)
        self.now = max(self.now, moment)

    def _schedule_days(self, start: float) -> None:
        for session in self.prices.sessions.all:
            if session.close > start and self.prices.row_of(session.date) is not None:
                self._timeline.add(session.close, "close", session.date.isoformat())
        for number, action in enumerate(self.prices.actions):
            day = self.prices.sessions.on(date.fromisoformat(action.ex_date))
            if day is not None and action.kind == "split" and day.at(_ACTIONS_HOUR) > start:
                self._timeline.add(day.at(_ACTIONS_HOUR), "split", str(number))

    def _on_close(self, _: str, moment: float) -> None:
        self.ledger.note_close(moment, self.means(moment).equity)
        equity, cash = text(self.ledger.last_equity), text(self.ledger.cash)
        held = {s: text(h.qty) for s, h in sorted(self.ledger.holdings.items())}
        self._hear(
            "account", {"event": "close", "equity": equity, "cash": cash, "held": held, "timestamp": stamp(moment)}
        )

    def _on_split(self, number: str, moment: float) -> None:
        """A split: open orders of the symbol are cancelled, the shares multiplied."""
        action = self.prices.actions[int(number)]
        for order in self.open_orders():
            if order.symbol == action.symbol:
                self._close(order, "canceled", moment)
        ratio = Decimal(repr(action.new)) / Decimal(repr(action.old))
        self.ledger.book_split(action.symbol, ratio, moment)
        self._hear(
            "account", {"event": "split", "symbol": action.symbol, "ratio": text(ratio), "timestamp": stamp(moment)}
        )

    # ---- the life of an order -------------------------------------------------------------------------------------

    def _made(self, ticket: rules.Ticket, moment: float, reserve: Decimal, origin: str) -> Order:
        number = len(self.orders)
        name = str(uuid.uuid5(NAMESPACE, f"{self.settings.seed}/{self.account_number}/order/{number}"))
        self._stamp = max(round(moment * _MICROS), self._stamp + 1)
        held = self.ledger.qty(ticket.symbol)
        closing = held < 0 if ticket.side == "buy" else held > 0
        return Order(
            number=number,
            id=name,
            client_order_id=ticket.client_order_id or str(uuid.uuid5(NAMESPACE, f"{name}/client")),
            symbol=ticket.symbol,
            side=ticket.side,
            type=ticket.type,
            time_in_force=ticket.time_in_force,
            qty=ticket.qty,
            notional=ticket.notional,
            limit_price=ticket.limit_price,
            stop_price=ticket.stop_price,
            extended_hours=ticket.extended_hours,
            position_intent=ticket.position_intent or f"{ticket.side}_to_{'close' if closing else 'open'}",
            submitted=self._stamp / _MICROS,
            expires=self._expiry(ticket, moment),
            reserve=reserve,
            origin=origin,
        )

    def _add(self, order: Order) -> None:
        self.orders[order.id] = self.by_client_id[order.client_order_id] = self._live[order.id] = order

    def _session_for(self, moment: float) -> Session | None:
        """The session that an order sent at a moment is for: the open one, else the next; None past the calendar."""
        current = self.prices.sessions.current(moment)
        if current is not None:
            return current
        try:
            return self.prices.sessions.next_open(moment)
        except IndexError:
            return None

    def _expiry(self, ticket: rules.Ticket, moment: float) -> float:
        session = self._session_for(moment)
        if session is None:
            raise Refusal(422, rules.RULE, "the panel of this stand-in has ended")
        if ticket.time_in_force == "gtc":
            last = self.prices.sessions.closed(moment + _GTC) or session
            return max(last.close, session.close)
        return session.at(_EXTENDED_CLOSE) if ticket.extended_hours else session.close

    def _start(self, order: Order, moment: float) -> None:
        session = self._session_for(moment)
        assert session is not None
        self._timeline.add(max(moment, session.open) if order.status == "accepted" else moment, "new", order.id)
        if order.time_in_force in ("day", "gtc"):
            self._timeline.add(order.expires, "expire", order.id)

    def _on_new(self, order_id: str, moment: float) -> None:
        order = self.orders[order_id]
        if order.status in ("accepted", "pending_new"):
            order.status = "new"
            self._tell("new", order, moment)
        if order.open:
            self._plan(order, moment)

    def _plan(self, order: Order, moment: float) -> None:
        """Look along the session's path for the moment at which the order fills, and set it down."""
        session = self._session_for(moment)
        if session is None:
            return
        path = None if self._stopped(order.symbol, session) else self.prices.path(order.symbol, session)
        if order.time_in_force in ("opg", "cls"):
            at = session.open if order.time_in_force == "opg" else session.close
            good = path is not None and matching.auction_fills(order, path)
            at = max(at, moment) + (self.conditions.fill_delay if good else 0.0)
            self._timeline.add(at, "fill" if good else "lapse", order.id)
            return
        start = max(moment, session.open)
        found = None if path is None else matching.first_execution(order, path, start)
        if order.time_in_force in ("ioc", "fok"):
            self._timeline.add(start, "fill" if found == start else "lapse", order.id)
            return
        if found is not None:
            self._timeline.add(found + self.conditions.fill_delay, "fill", order.id)
        elif order.time_in_force == "gtc" and session.close < order.expires:
            self._timeline.add(self.prices.sessions.next_open(session.open).open, "again", order.id)

    def _stopped(self, symbol: str, session: Session) -> bool:
        return symbol in self.conditions.halted or not self.prices.trades_on(symbol, session.date)

    def resume(self, symbol: str, moment: float) -> None:
        """End a halt; waiting orders are looked at anew."""
        self.advance(moment)
        self.conditions.halted.discard(symbol)
        for order in self.open_orders():
            if order.symbol == symbol and order.status in ("new", "partially_filled"):
                self._plan(order, moment)

    def _on_again(self, order_id: str, moment: float) -> None:
        if self.orders[order_id].open:
            self._plan(self.orders[order_id], moment)

    def _on_lapse(self, order_id: str, moment: float) -> None:
        if self.orders[order_id].open:
            self._close(self.orders[order_id], "canceled", moment)

    def _on_expire(self, order_id: str, moment: float) -> None:
        if self.orders[order_id].open:
            self._close(self.orders[order_id], "expired", moment)

    def _on_cancel(self, order_id: str, moment: float) -> None:
        if self.orders[order_id].status == "pending_cancel":
            self._close(self.orders[order_id], "canceled", moment)

    def _on_replace(self, new_id: str, moment: float) -> None:
        new = self.orders[new_id]
        old = self.orders[str(new.replaces)]
        if not new.open:
            return
        if old.status != "pending_replace":
            # The original was filled, or went otherwise, before the replacement reached it.
            self._close(new, "rejected", moment)
            self._tell("order_replace_rejected", old, moment)
            return
        old.status, old.replaced_by = "replaced", new.id
        old.moments["replaced"] = old.updated = moment
        self._tell("replaced", old, moment)
        new.status = "pending_new"
        self._start(new, moment)

    def _on_fill(self, order_id: str, moment: float) -> None:
        """Fill the whole, or the first of two parts. An order that is being cancelled or replaced still fills."""
        order = self.orders[order_id]
        session = self._trading_day(order, moment)
        if not order.open or order.moments.get("filling", 0.0) > moment:
            return
        if session is None:
            return
        if order.symbol in self.conditions.halted:
            if order.time_in_force not in ("day", "gtc"):
                self._close(order, "canceled", moment)
            return
        path = self.prices.path(order.symbol, session)
        assert path is not None, "an order is only planned where the symbol has a bar"
        price = matching.fill_price(order, path, moment)
        left = order.remaining if order.notional is None else shares((order.notional - order.value) / price)
        if left <= 0:
            return
        quantity, gap = matching.first_part(order, left, self.settings)
        self._book(order, quantity, price, moment, done=quantity >= left)
        if order.open:
            order.moments["filling"] = moment + gap
            self._timeline.add(moment + gap, "fill", order.id)

    def _trading_day(self, order: Order, moment: float) -> Session | None:
        """The session in which a fill at this moment happens; one at the close itself still belongs to it."""
        current = self.prices.sessions.current(moment)
        if current is not None:
            return current
        last = self.prices.sessions.closed(moment)
        return (
            last if last is not None and order.time_in_force == "cls" and last.date == new_york(moment).date() else None
        )

    def _book(self, order: Order, quantity: Decimal, price: Decimal, moment: float, *, done: bool) -> None:
        order.filled += quantity
        order.value += quantity * price
        pending = order.status if order.status in _ON_THE_WAY else None
        order.status = "filled" if done else pending or "partially_filled"
        order.updated = moment
        if done:
            order.moments["filled"] = moment
        self.day_trades.note(order, moment)
        self.ledger.book_fill(order, quantity, price, moment, self.settings.cost_bps)
        self._tell(
            "fill" if done else "partial_fill",
            order,
            moment,
            price=text(price),
            qty=text(quantity),
            position_qty=text(self.ledger.qty(order.symbol)),
        )
        if done and pending == "pending_cancel":
            self._tell("order_cancel_rejected", order, moment)

    def _close(self, order: Order, status: str, moment: float) -> None:
        order.status = status
        order.updated = moment
        order.moments["failed" if status == "rejected" else status] = moment
        self._tell(status, order, moment)

    def _check_means(self, order: Order, moment: float, instead_of: Order | None = None) -> None:
        held = self.ledger.qty(order.symbol)
        if order.side == "sell" and held > 0:
            checks.check_shares(order, held, self.available(order.symbol) + (instead_of.remaining if instead_of else 0))
            return
        if order.side == "sell":
            checks.check_short(order, allowed=self.settings.shorting)
        checks.check_money(order, held, self.means(moment, without=instead_of).buying_power)

    # ---- telling --------------------------------------------------------------------------------------------------

    def _tell(self, event: str, order: Order, moment: float, **fill: Any) -> None:
        self._executions += 1
        if not order.updated:
            order.updated = order.submitted
        if not order.open:
            self._live.pop(order.id, None)
        self._hear(
            "order",
            {
                "event": event,
                "execution_id": str(uuid.uuid5(NAMESPACE, f"{self.settings.seed}/execution/{self._executions}")),
                "order": order.plain(),
                "timestamp": stamp(moment),
                **fill,
            },
        )

    def _hear(self, kind: str, event: dict[str, Any]) -> None:
        for listener in self.listeners:
            listener(kind, event)

    # ---- keeping --------------------------------------------------------------------------------------------------

    def kept(self) -> dict[str, Any]:
        """Everything that a restarted server needs, as JSON can hold it."""
        return {
            "orders": [o.kept() for o in self.orders.values()],
            "ledger": self.ledger.kept(),
            "due": self._timeline.kept(),
            "counters": [self._executions, self.account_number],
            "stamp": self._stamp,
            "now": self.now,
            "bought_on": self.day_trades.bought_on,
            "day_trades": self.day_trades.days,
            "halted": sorted(self.conditions.halted),
            "untradable": sorted(self.conditions.untradable),
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Raises InputError when the values are none that `kept` made."""
        try:
            orders = [Order.restored(o) for o in values["orders"]]
            self.orders = {o.id: o for o in orders}
            self.by_client_id = {o.client_order_id: o for o in orders}
            self._live = {o.id: o for o in orders if o.open}
            self.ledger.restore(values["ledger"])
            self._timeline.restore(values["due"])
            self._executions, self.account_number = values["counters"]
            self._stamp, self.now = values["stamp"], values["now"]
            self.day_trades.bought_on, self.day_trades.days = dict(values["bought_on"]), list(values["day_trades"])
            self.conditions.halted, self.conditions.untradable = set(values["halted"]), set(values["untradable"])
        except (KeyError, TypeError, ValueError):
            raise InputError("the fake server's state file is damaged: name another, or start without it") from None
