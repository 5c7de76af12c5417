"""The account: its orders, cash, holdings and activities (`Ledger`), its balances, and the events it publishes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from finrl_pod.fake_alpaca import wire_format as wire
from finrl_pod.fake_alpaca.prices import new_york

ORDER_CLASSES = ("simple", "bracket", "oco", "oto")
OPEN_STATUSES = (
    "new", "partially_filled", "accepted", "pending_new", "pending_cancel", "pending_replace", "held",
)  # fmt: skip
_BASIS_POINTS = Decimal(10_000)
_MICROSECONDS = 1_000_000  # submission times of two orders differ by at least one

Listener = Callable[[str, dict[str, Any]], None]


@dataclass(kw_only=True)
class OrderTicket:
    """A client's request for an order after the checks that need no account. Quantities in shares, money in dollars."""

    client_order_id: str
    symbol: str
    side: str
    type: str
    time_in_force: str
    qty: Decimal | None
    notional: Decimal | None
    limit_price: Decimal | None
    stop_price: Decimal | None
    extended_hours: bool
    position_intent: str | None
    order_class: str = "simple"

    @property
    def fractional(self) -> bool:
        """Whether the order is for a dollar amount or for a fraction of a share."""
        return self.notional is not None or (self.qty is not None and self.qty % 1 != 0)


@dataclass(kw_only=True)
class Order(OrderTicket):
    """An accepted order. Quantities in shares, prices and values in dollars, times in UTC epoch seconds.

    reserve: price at which an open order reserves buying power. filled: shares; value: dollars paid for them.
    origin: "client" for the trading API, "foreign" for orders of the control API.
    parent: id of the order that this one is a leg of. legs: ids of the legs of an order with exits.
    moments: time of each status it reached; "filling" is the earliest time of the next partial fill.
    """

    number: int
    id: str
    submitted_at: float
    expires: float
    reserve: Decimal
    status: str = "pending_new"
    updated_at: float = 0.0
    filled: Decimal = Decimal(0)
    value: Decimal = Decimal(0)
    replaces: str | None = None
    replaced_by: str | None = None
    origin: str = "client"
    parent: str | None = None
    legs: list[str] = field(default_factory=list)
    moments: dict[str, float] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Whether the order can still fill."""
        return self.status in OPEN_STATUSES

    @property
    def sign(self) -> int:
        """1 for a purchase, -1 for a sale."""
        return 1 if self.side == "buy" else -1

    @property
    def is_held(self) -> bool:
        """True for an exit that reserves neither shares nor buying power, because only one of two exits can fill."""
        return self.status == "held"

    @property
    def remaining(self) -> Decimal:
        """Shares not yet filled; for a dollar amount, those that it buys at the reserve price."""
        if self.qty is not None:
            return self.qty - self.filled
        assert self.notional is not None
        return wire.floor_shares((self.notional - self.value) / self.reserve)

    def to_json(self, legs: Sequence[Order] = ()) -> dict[str, Any]:
        """JSON of the order in the REST API and the stream. legs: orders to show within it."""
        statuses = ("filled", "expired", "canceled", "failed", "replaced")
        moments = {
            f"{name}_at": wire.timestamp(self.moments[name]) if name in self.moments else None for name in statuses
        }
        average = self.value / self.filled if self.filled else None
        return {
            "id": self.id,
            "client_order_id": self.client_order_id,
            "created_at": wire.timestamp(self.submitted_at),
            "updated_at": wire.timestamp(self.updated_at or self.submitted_at),
            "submitted_at": wire.timestamp(self.submitted_at),
            **moments,
            "replaced_by": self.replaced_by,
            "replaces": self.replaces,
            "asset_id": wire.asset_id(self.symbol),
            "symbol": self.symbol,
            "asset_class": "crypto" if "/" in self.symbol else "us_equity",
            "notional": wire.decimal_text(self.notional),
            "qty": wire.decimal_text(self.qty),
            "filled_qty": wire.decimal_text(self.filled),
            "filled_avg_price": None if average is None else wire.decimal_text(average.quantize(wire.NANO)),
            "order_class": self.order_class,
            "order_type": self.type,
            "type": self.type,
            "side": self.side,
            "position_intent": self.position_intent,
            "time_in_force": self.time_in_force,
            "limit_price": wire.decimal_text(self.limit_price),
            "stop_price": wire.decimal_text(self.stop_price),
            "status": self.status,
            "extended_hours": self.extended_hours,
            "legs": [leg.to_json() for leg in legs] or None,
            "trail_percent": None,
            "trail_price": None,
            "hwm": None,
            "expires_at": wire.timestamp(self.expires),
        }


@dataclass
class Holding:
    """qty: shares, negative for a short position. entry: average entry price in dollars."""

    qty: Decimal
    entry: Decimal


@dataclass
class Ledger:
    """Cash, holdings and activities of the account, changed only by fills, corporate actions and transfers.

    cash, start_cash, last_equity: dollars now, at the start, and at the last close.
    closes: (UTC epoch seconds, equity) of each session.
    """

    cash: Decimal
    start_cash: Decimal
    last_equity: Decimal
    seed: int
    holdings: dict[str, Holding] = field(default_factory=dict)
    activities: list[dict[str, Any]] = field(default_factory=list)
    closes: list[tuple[float, Decimal]] = field(default_factory=list)

    def qty(self, symbol: str) -> Decimal:
        """Shares held, negative for a short position, 0 for none."""
        holding = self.holdings.get(symbol)
        return Decimal(0) if holding is None else holding.qty

    def book_fill(self, order: Order, qty: Decimal, price: Decimal, moment: float, cost_bps: Decimal) -> None:
        """Move cash and shares and add a FILL activity; `order` already includes the fill."""
        signed_quantity = qty * order.sign
        self.cash -= signed_quantity * price
        self._change_holding(order.symbol, signed_quantity, price)
        self._add_activity(
            moment,
            "FILL",
            {
                "transaction_time": wire.timestamp(moment),
                "type": "fill" if order.status == "filled" else "partial_fill",
                "price": wire.decimal_text(price),
                "qty": wire.decimal_text(qty),
                "side": order.side,
                "symbol": order.symbol,
                "leaves_qty": wire.decimal_text(order.remaining if order.open else Decimal(0)),
                "order_id": order.id,
                "cum_qty": wire.decimal_text(order.filled),
                "order_status": order.status,
            },
        )
        if cost_bps:
            fee = qty * price * cost_bps / _BASIS_POINTS
            self.cash -= fee
            self._add_non_trade_activity(
                moment, "FEE", order.symbol, f"fee of order {order.id}", net_amount=wire.decimal_text(-fee)
            )

    def book_split(self, symbol: str, ratio: Decimal, moment: float) -> None:
        """Multiply the shares and divide their entry price; does nothing if none are held."""
        holding = self.holdings.get(symbol)
        if holding is None:
            return
        shares_before = holding.qty
        holding.qty = holding.qty * ratio
        holding.entry = holding.entry / ratio
        change = wire.decimal_text(holding.qty - shares_before)
        self._add_non_trade_activity(moment, "SPLIT", symbol, f"split {wire.decimal_text(ratio)} for 1", qty=change)

    def book_activity(
        self, kind: str, symbol: str, qty: Decimal, net_amount: Decimal, price: Decimal, moment: float, group: str
    ) -> None:  # fmt: skip
        """Move cash, and shares at a price; of a dividend, `qty` is the number of shares that it is paid for."""
        self.cash += net_amount
        if qty and not kind.startswith("DIV"):
            self._change_holding(symbol, qty, price)
        amounts = {"qty": wire.decimal_text(qty), "net_amount": wire.decimal_text(net_amount), "group_id": group}
        self._add_non_trade_activity(moment, kind, symbol, "", **amounts)

    def _change_holding(self, symbol: str, signed_quantity: Decimal, price: Decimal) -> None:
        holding = self.holdings.get(symbol)
        if holding is None:
            self.holdings[symbol] = Holding(signed_quantity, price)
            return
        shares_before = holding.qty
        shares_after = holding.qty + signed_quantity
        if shares_after == 0:
            del self.holdings[symbol]
            return
        if shares_before * shares_after < 0:
            holding.entry = price
        elif abs(shares_after) > abs(shares_before):
            holding.entry = (holding.entry * shares_before + price * signed_quantity) / shares_after
        holding.qty = shares_after

    def _add_non_trade_activity(
        self, moment: float, kind: str, symbol: str, description: str, **amounts: str | None
    ) -> None:  # fmt: skip
        fields = {
            "date": f"{new_york(moment).date()}",
            **({"symbol": symbol} if symbol else {}),
            "qty": "0",
            "net_amount": "0",
            "per_share_amount": "0",
            "status": "executed",
            "description": description,
            **amounts,
        }
        self._add_activity(moment, kind, fields)

    def _add_activity(self, moment: float, kind: str, fields: Mapping[str, Any]) -> None:
        local = new_york(moment)
        unique = uuid.uuid5(wire.ID_NAMESPACE, f"{self.seed}/activity/{len(self.activities)}")
        name = f"{local:%Y%m%d%H%M%S}{local.microsecond // 1000:03d}::{unique}"
        self.activities.append({"activity_type": kind, "id": name, "created_at": wire.timestamp(moment), **fields})


@dataclass(frozen=True)
class Balances:
    """Values and buying power of the account in dollars. short is negative; open orders hold reserved_cash back."""

    equity: Decimal
    long: Decimal
    short: Decimal
    reserved_cash: Decimal
    buying_power: Decimal
    cash_buying_power: Decimal


def compute_balances(
    ledger: Ledger, prices: Mapping[str, Decimal], open_orders: Iterable[Order], multiplier: int
) -> Balances:
    """Balances at prices. Orders that open exposure reserve cash. multiplier: 1 for cash, 2 or 4 for margin."""
    long = sum((h.qty * prices[s] for s, h in ledger.holdings.items() if h.qty > 0), Decimal(0))
    short = sum((h.qty * prices[s] for s, h in ledger.holdings.items() if h.qty < 0), Decimal(0))
    reserved_cash = sum((opening_quantity(o, ledger.qty(o.symbol)) * o.reserve for o in open_orders), Decimal(0))
    equity = ledger.cash + long + short
    cash_power = ledger.cash - reserved_cash
    power = cash_power if multiplier == 1 else multiplier * equity - long + short - reserved_cash
    return Balances(equity, long, short, reserved_cash, max(power, Decimal(0)), max(cash_power, Decimal(0)))


def opening_quantity(order: Order, shares_held: Decimal) -> Decimal:
    """Shares of an order that open exposure: those beyond closing the existing position."""
    closable = max(-shares_held * order.sign, Decimal(0))
    return max(order.remaining - closable, Decimal(0))


class Account:
    """The ledger, every accepted order, and the listeners of events.

    listeners: called with "order" or "account" and the event, in the order in which events happen.
    """

    def __init__(self, cash: Decimal, seed: int) -> None:
        self.ledger = Ledger(cash, cash, cash, seed)
        self.orders: dict[str, Order] = {}
        self.by_client_id: dict[str, Order] = {}
        self.listeners: list[Listener] = []
        self.account_number = 1
        self._open: dict[str, Order] = {}
        self._executions = 0
        self._last_stamp = 0  # submission time of the last order, epoch microseconds
        self._seed = seed

    def create_order(self, ticket: OrderTicket, moment: float, expires: float, reserve: Decimal, origin: str) -> Order:
        """An order from a ticket, with its ids and submission time. It is not stored until `add_order`."""
        number = len(self.orders)
        name = str(uuid.uuid5(wire.ID_NAMESPACE, f"{self._seed}/{self.account_number}/order/{number}"))
        self._last_stamp = max(round(moment * _MICROSECONDS), self._last_stamp + 1)
        shares_held = self.ledger.qty(ticket.symbol)
        closing = shares_held < 0 if ticket.side == "buy" else shares_held > 0
        defaults = {
            "client_order_id": ticket.client_order_id or str(uuid.uuid5(wire.ID_NAMESPACE, f"{name}/client")),
            "position_intent": ticket.position_intent or f"{ticket.side}_to_{'close' if closing else 'open'}",
        }
        return Order(
            **{**vars(ticket), **defaults},
            number=number,
            id=name,
            submitted_at=self._last_stamp / _MICROSECONDS,
            expires=expires,
            reserve=reserve,
            origin=origin,
        )

    def add_order(self, order: Order) -> None:
        """Store an order under its ids."""
        self.orders[order.id] = self.by_client_id[order.client_order_id] = self._open[order.id] = order

    def order_json(self, order: Order) -> dict[str, Any]:
        """JSON of an order with its legs."""
        return order.to_json([self.orders[leg_id] for leg_id in order.legs])

    def find(self, name: str, *, by_client_id: bool = False) -> Order:
        """The order with an id, or a client order id. Raises ApiError (404) if there is none."""
        order = (self.by_client_id if by_client_id else self.orders).get(name)
        if order is None:
            raise wire.ApiError(404, wire.NOT_FOUND, f"order not found for {name}")
        return order

    def open_orders(self) -> list[Order]:
        """Orders that can still fill, oldest first."""
        return list(self._open.values())

    def available(self, symbol: str) -> Decimal:
        """Shares held that no open order reserves for closing."""
        shares_held = self.ledger.qty(symbol)
        reserved_shares = (
            o.remaining for o in self.open_orders() if not o.is_held and o.symbol == symbol and o.sign * shares_held < 0
        )
        return max(abs(shares_held) - sum(reserved_shares, Decimal(0)), Decimal(0))

    def publish_order_event(self, event: str, order: Order, moment: float, **fill: Any) -> None:
        """Send an event of an order to the listeners; a finished order is removed from the open orders."""
        self._executions += 1
        if not order.updated_at:
            order.updated_at = order.submitted_at
        if not order.open:
            self._open.pop(order.id, None)
        self.publish(
            "order",
            {
                "event": event,
                "execution_id": str(uuid.uuid5(wire.ID_NAMESPACE, f"{self._seed}/execution/{self._executions}")),
                "order": order.to_json(),
                "timestamp": wire.timestamp(moment),
                **fill,
            },
        )

    def publish(self, kind: str, event: dict[str, Any]) -> None:
        """Send an event to the listeners. kind: "order" or "account"."""
        for listener in self.listeners:
            listener(kind, event)
