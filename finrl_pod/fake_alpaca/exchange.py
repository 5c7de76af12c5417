"""The broker and its market in simulated time: takes orders, fills, cancels, expires and replaces them.

Nothing here reads a clock: every call is handed the moment, and `advance` carries out what fell due by then, in order.
Given the same calls at the same moments the result is the same; what is random is drawn for each client_order_id alone,
so it does not depend on the order in which requests arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from finrl_pod.errors import InputError
from finrl_pod.fake_alpaca import checks, rules
from finrl_pod.fake_alpaca.books import Books
from finrl_pod.fake_alpaca.conditions import Conditions
from finrl_pod.fake_alpaca.ledger import Means, means
from finrl_pod.fake_alpaca.life import ON_THE_WAY, Life
from finrl_pod.fake_alpaca.orders import Order, Refusal, amount, text
from finrl_pod.fake_alpaca.prices import Prices
from finrl_pod.fake_alpaca.sessions import new_york, stamp
from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.fake_alpaca.timeline import Timeline

_ACTIONS_HOUR = 4


class Exchange(Books):
    """One account at one exchange. Raises Refusal for whatever Alpaca would refuse."""

    def __init__(self, prices: Prices, settings: Settings, start: float) -> None:
        super().__init__(settings.cash, settings.seed)
        self.prices = prices
        self.settings = settings
        self.conditions = Conditions(
            fill_delay=settings.fill_delay, cancel_delay=settings.cancel_delay, partial=settings.partial,
            partial_gap=settings.partial_gap,
        )  # fmt: skip
        self.day_trades = checks.DayTrades(prices.sessions)
        self.now = start
        self._timeline = Timeline()
        self._life = Life(self, prices, settings, self.conditions, self._timeline, self.day_trades)
        self._carry_out: dict[str, Callable[[str, float], None]] = {
            **self._life.carry_out,
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
        order = self.make(ticket, moment, self._life.expiry(ticket, moment), ticket.limit_price or price, origin)
        checks.check_wash(order, self.open_orders())
        self._check_means(order, moment)
        if self.settings.old_day_trading:
            self.day_trades.check(order, moment, self.means(moment).equity)
        self.add(order)
        if self.prices.sessions.current(moment) is None:
            order.status = "accepted"
        self.tell("pending_new", order, moment)
        self._life.start(order, moment)
        return order

    def cancel(self, order_id: str, moment: float) -> Order:
        """Ask for a cancel. It goes through after `cancel_delay`; a fill that comes first wins."""
        self.advance(moment)
        order = self.find(order_id)
        if not order.open or order.status in ON_THE_WAY:
            raise Refusal(422, rules.RULE, f'order is already in "{order.status}" state')
        order.status = "pending_cancel"
        self.tell("pending_cancel", order, moment)
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
        reserve = limit or self.price(old.symbol, moment)
        new = self.make(ticket, moment, self._life.expiry(ticket, moment), reserve, old.origin)
        self._check_means(new, moment, instead_of=old)
        new.replaces = old.id
        self.add(new)
        old.status = "pending_replace"
        self.tell("pending_replace", old, moment)
        self._timeline.add(moment + self.conditions.replace_delay, "replace", new.id)
        self.advance(moment)
        return new

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
        session = self._life.session_for(moment)
        return session is not None and self.prices.trades_on(symbol, session.date)

    def means(self, moment: float, without: Order | None = None) -> Means:
        """Equity and buying power at the prices of a moment."""
        prices = {s: self.price(s, moment) for s in self.ledger.holdings}
        return means(self.ledger, prices, [o for o in self.open_orders() if o is not without], self.settings.multiplier)

    def reset(self, cash: Decimal, moment: float) -> None:
        """What the button of a paper account does: another account number, all orders gone, all cash again."""
        self.advance(moment)
        for order in self.open_orders():
            self._life.close(order, "canceled", moment)
        self.renew(cash)
        self.hear("account", {"event": "reset", "cash": text(cash), "timestamp": stamp(moment)})

    def resume(self, symbol: str, moment: float) -> None:
        """End a halt; waiting orders are looked at anew."""
        self.advance(moment)
        self.conditions.halted.discard(symbol)
        for order in self.open_orders():
            if order.symbol == symbol and order.status in ("new", "partially_filled"):
                self._life.plan(order, moment)

    def _check_means(self, order: Order, moment: float, instead_of: Order | None = None) -> None:
        held = self.ledger.qty(order.symbol)
        if order.side == "sell" and held > 0:
            checks.check_shares(order, held, self.available(order.symbol) + (instead_of.remaining if instead_of else 0))
            return
        if order.side == "sell":
            checks.check_short(order, allowed=self.settings.shorting)
        checks.check_money(order, held, self.means(moment, without=instead_of).buying_power)

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
        self.hear(
            "account", {"event": "close", "equity": equity, "cash": cash, "held": held, "timestamp": stamp(moment)}
        )

    def _on_split(self, number: str, moment: float) -> None:
        """A split: open orders of the symbol are cancelled, the shares multiplied."""
        action = self.prices.actions[int(number)]
        for order in self.open_orders():
            if order.symbol == action.symbol:
                self._life.close(order, "canceled", moment)
        ratio = Decimal(repr(action.new)) / Decimal(repr(action.old))
        self.ledger.book_split(action.symbol, ratio, moment)
        self.hear(
            "account", {"event": "split", "symbol": action.symbol, "ratio": text(ratio), "timestamp": stamp(moment)}
        )

    # ---- keeping --------------------------------------------------------------------------------------------------

    def kept(self) -> dict[str, Any]:
        """Everything that a restarted server needs, as JSON can hold it."""
        return {
            **super().kept(),
            "due": self._timeline.kept(),
            "now": self.now,
            "bought_on": self.day_trades.bought_on,
            "day_trades": self.day_trades.days,
            "halted": sorted(self.conditions.halted),
            "untradable": sorted(self.conditions.untradable),
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Raises InputError when the values are none that `kept` made."""
        try:
            super().restore(values)
            self._timeline.restore(values["due"])
            self.now = values["now"]
            self.day_trades.bought_on, self.day_trades.days = dict(values["bought_on"]), list(values["day_trades"])
            self.conditions.halted, self.conditions.untradable = set(values["halted"]), set(values["untradable"])
        except (KeyError, TypeError, ValueError):
            raise InputError("the fake server's state file is damaged: name another, or start without it") from None
