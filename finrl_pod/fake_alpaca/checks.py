"""Whether the account may send an order: what it holds, what it can pay, and what else it has open."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from finrl_pod.fake_alpaca.ledger import opening
from finrl_pod.fake_alpaca.orders import Order, Refusal, text
from finrl_pod.fake_alpaca.rules import FORBIDDEN, RULE
from finrl_pod.fake_alpaca.sessions import Sessions, new_york

_DAY_TRADING = 40310100
_DAY_TRADES, _DAYS, _DAY_TRADER_EQUITY = 3, 5, Decimal(25_000)


def check_wash(order: Order, others: Iterable[Order]) -> None:
    """Raises Refusal where an open order of the other side could trade with this one."""
    for other in others:
        if other.symbol != order.symbol or other.side == order.side:
            continue
        limits = {o.side: o.limit_price for o in (order, other)}
        buy, sell = limits["buy"], limits["sell"]
        if buy is not None and sell is not None and buy < sell:
            continue
        raise Refusal(
            403,
            FORBIDDEN,
            "potential wash trade detected. use complex orders",
            existing_order_id=other.id,
            reject_reason=f"opposite side {other.type} order exists",
        )


def check_shares(order: Order, held: Decimal, free: Decimal) -> None:
    """A sale out of a long position: raises Refusal where too few are free of other orders."""
    if order.remaining > free:
        raise Refusal(
            403,
            FORBIDDEN,
            f"insufficient qty available for order (requested: {text(order.remaining)}, available: {text(free)})",
            available=text(free),
            existing_qty=text(held),
            held_for_orders=text(held - free),
            symbol=order.symbol,
        )


def check_short(order: Order, *, allowed: bool) -> None:
    """A sale of what is not held: in whole shares, where the account may."""
    if not allowed:
        raise Refusal(403, FORBIDDEN, "account is not allowed to short")
    if order.notional is not None or order.remaining % 1 != 0:
        raise Refusal(422, RULE, "fractional orders cannot be sold short")


def check_money(order: Order, held: Decimal, power: Decimal) -> None:
    """Raises Refusal where what the order opens costs more than the buying power."""
    cost = opening(order, held) * order.reserve if order.notional is None else order.notional
    if cost > power:
        raise Refusal(403, FORBIDDEN, "insufficient buying power", buying_power=text(power), cost_basis=text(cost))


class DayTrades:
    """The rule that held until 2026: to buy and sell on one day is a day trade, a fourth in five is refused."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.bought_on: dict[str, str] = {}
        self.days: list[str] = []

    def note(self, order: Order, moment: float) -> None:
        """A fill."""
        today = new_york(moment).date().isoformat()
        if order.side == "buy":
            self.bought_on[order.symbol] = today
        elif self.bought_on.get(order.symbol) == today and order.status == "filled":
            self.days.append(today)

    def count(self, moment: float) -> int:
        """Day trades of the last five sessions."""
        recent = self._sessions.between(self._sessions.all[0].date, new_york(moment).date())[-_DAYS:]
        return sum(day in {s.date.isoformat() for s in recent} for day in self.days)

    def check(self, order: Order, moment: float, equity: Decimal) -> None:
        today = new_york(moment).date().isoformat()
        same_day = order.side == "sell" and self.bought_on.get(order.symbol) == today
        if same_day and equity < _DAY_TRADER_EQUITY and self.count(moment) >= _DAY_TRADES:
            raise Refusal(403, _DAY_TRADING, "trade denied due to pattern day trading protection")
