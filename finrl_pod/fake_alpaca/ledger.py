"""Cash, holdings and what happened to them: the account's own book."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from finrl_pod.fake_alpaca.orders import NAMESPACE, Order, text
from finrl_pod.fake_alpaca.sessions import new_york, stamp

_BASIS = Decimal(10_000)


@dataclass
class Holding:
    """qty: shares, negative when short. entry: average price paid for them."""

    qty: Decimal
    entry: Decimal


class Ledger:
    """Booked by fills and corporate actions alone."""

    def __init__(self, cash: Decimal, seed: int) -> None:
        self.cash = cash
        self.start = cash
        self.last_equity = cash
        self.holdings: dict[str, Holding] = {}
        self.activities: list[dict[str, Any]] = []
        self.closes: list[tuple[float, Decimal]] = []
        self._seed = seed

    def qty(self, symbol: str) -> Decimal:
        holding = self.holdings.get(symbol)
        return Decimal(0) if holding is None else holding.qty

    def book_fill(self, order: Order, qty: Decimal, price: Decimal, moment: float, cost_bps: Decimal) -> None:
        """Move cash and shares, and write the FILL activity; `order` has the fill in it already."""
        signed = qty * order.sign
        self.cash -= signed * price
        self._hold(order.symbol, signed, price)
        self._note(
            moment,
            "FILL",
            {
                "transaction_time": stamp(moment),
                "type": "fill" if order.status == "filled" else "partial_fill",
                "price": text(price),
                "qty": text(qty),
                "side": order.side,
                "symbol": order.symbol,
                "leaves_qty": text(order.remaining if order.open else Decimal(0)),
                "order_id": order.id,
                "cum_qty": text(order.filled),
                "order_status": order.status,
            },
        )
        if cost_bps:
            fee = qty * price * cost_bps / _BASIS
            self.cash -= fee
            self._note_cash(moment, "FEE", order.symbol, -fee, f"fee of order {order.id}")

    def book_split(self, symbol: str, ratio: Decimal, moment: float) -> None:
        """Multiply the shares and divide their entry price; nothing where none are held."""
        holding = self.holdings.get(symbol)
        if holding is None:
            return
        before = holding.qty
        holding.qty, holding.entry = holding.qty * ratio, holding.entry / ratio
        detail = {
            "date": f"{new_york(moment).date()}",
            "symbol": symbol,
            "qty": text(holding.qty - before),
            "net_amount": "0",
            "per_share_amount": "0",
            "status": "executed",
            "description": f"split {text(ratio)} for 1",
        }
        self._note(moment, "SPLIT", detail)

    def note_close(self, moment: float, equity: Decimal) -> None:
        """The account's equity at a session's close."""
        self.closes.append((moment, equity))
        self.last_equity = equity

    def _hold(self, symbol: str, signed: Decimal, price: Decimal) -> None:
        holding = self.holdings.get(symbol)
        if holding is None:
            self.holdings[symbol] = Holding(signed, price)
            return
        before, after = holding.qty, holding.qty + signed
        if after == 0:
            del self.holdings[symbol]
            return
        if before * after < 0:
            holding.entry = price
        elif abs(after) > abs(before):
            holding.entry = (holding.entry * before + price * signed) / after
        holding.qty = after

    def _note_cash(self, moment: float, kind: str, symbol: str, net: Decimal, description: str) -> None:
        detail = {
            "date": f"{new_york(moment).date()}",
            "symbol": symbol,
            "qty": "0",
            "net_amount": text(net),
            "per_share_amount": "0",
            "status": "executed",
            "description": description,
        }
        self._note(moment, kind, detail)

    def _note(self, moment: float, kind: str, detail: Mapping[str, Any]) -> None:
        local = new_york(moment)
        unique = uuid.uuid5(NAMESPACE, f"{self._seed}/activity/{len(self.activities)}")
        name = f"{local:%Y%m%d%H%M%S}{local.microsecond // 1000:03d}::{unique}"
        self.activities.append({"activity_type": kind, "id": name, "created_at": stamp(moment), **detail})

    def kept(self) -> dict[str, Any]:
        """For the state file."""
        return {
            "cash": str(self.cash),
            "start": str(self.start),
            "last_equity": str(self.last_equity),
            "holdings": {s: [str(h.qty), str(h.entry)] for s, h in self.holdings.items()},
            "activities": self.activities,
            "closes": [[t, str(e)] for t, e in self.closes],
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        self.cash = Decimal(values["cash"])
        self.start = Decimal(values["start"])
        self.last_equity = Decimal(values["last_equity"])
        self.holdings = {s: Holding(Decimal(q), Decimal(e)) for s, (q, e) in values["holdings"].items()}
        self.activities = list(values["activities"])
        self.closes = [(t, Decimal(e)) for t, e in values["closes"]]


@dataclass(frozen=True)
class Means:
    """What the account is worth and may still spend, in dollars."""

    equity: Decimal
    long: Decimal
    short: Decimal
    reserved: Decimal
    buying_power: Decimal
    cash_power: Decimal


def means(ledger: Ledger, prices: Mapping[str, Decimal], orders: Iterable[Order], multiplier: int) -> Means:
    """Open purchases (and sales that would open a short) keep back their cost."""
    long = sum((h.qty * prices[s] for s, h in ledger.holdings.items() if h.qty > 0), Decimal(0))
    short = sum((h.qty * prices[s] for s, h in ledger.holdings.items() if h.qty < 0), Decimal(0))
    reserved = sum((opening(o, ledger.qty(o.symbol)) * o.reserve for o in orders), Decimal(0))
    equity = ledger.cash + long + short
    cash_power = ledger.cash - reserved
    power = cash_power if multiplier == 1 else multiplier * equity - long + short - reserved
    return Means(equity, long, short, reserved, max(power, Decimal(0)), max(cash_power, Decimal(0)))


def opening(order: Order, held: Decimal) -> Decimal:
    """The shares of an order that open exposure, instead of closing what is held."""
    closable = max(-held * order.sign, Decimal(0))
    return max(order.remaining - closable, Decimal(0))
