"""What the exchange remembers: the account's ledger, every order that was taken, and whom it tells of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from finrl_pod.fake_alpaca.ledger import Ledger
from finrl_pod.fake_alpaca.orders import NAMESPACE, Order, Refusal, Ticket
from finrl_pod.fake_alpaca.sessions import stamp

_MICROS = 1_000_000  # a second; the stamps of two orders differ by one at least, however fast they arrive

Listener = Callable[[str, dict[str, Any]], None]


class Books:
    """listeners: called with "order" or "account" and the event, in the order in which they happen."""

    def __init__(self, cash: Decimal, seed: int) -> None:
        self.ledger = Ledger(cash, seed)
        self.orders: dict[str, Order] = {}
        self.by_client_id: dict[str, Order] = {}
        self.listeners: list[Listener] = []
        self.account_number = 1
        self._live: dict[str, Order] = {}
        self._executions = 0
        self._stamp = 0
        self._seed = seed

    # ---- orders ---------------------------------------------------------------------------------------------------

    def make(self, ticket: Ticket, moment: float, expires: float, reserve: Decimal, origin: str) -> Order:
        """The order that a ticket becomes; it is not in the books before `add`."""
        number = len(self.orders)
        name = str(uuid.uuid5(NAMESPACE, f"{self._seed}/{self.account_number}/order/{number}"))
        self._stamp = max(round(moment * _MICROS), self._stamp + 1)
        held = self.ledger.qty(ticket.symbol)
        closing = held < 0 if ticket.side == "buy" else held > 0
        named = {
            "client_order_id": ticket.client_order_id or str(uuid.uuid5(NAMESPACE, f"{name}/client")),
            "position_intent": ticket.position_intent or f"{ticket.side}_to_{'close' if closing else 'open'}",
        }
        return Order(
            **{**vars(ticket), **named},
            number=number,
            id=name,
            submitted=self._stamp / _MICROS,
            expires=expires,
            reserve=reserve,
            origin=origin,
        )

    def add(self, order: Order) -> None:
        self.orders[order.id] = self.by_client_id[order.client_order_id] = self._live[order.id] = order

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

    def open_orders(self) -> list[Order]:
        return list(self._live.values())

    # ---- the account ----------------------------------------------------------------------------------------------

    def available(self, symbol: str) -> Decimal:
        """Shares held that no open order on the closing side has a claim on."""
        held = self.ledger.qty(symbol)
        claimed = (o.remaining for o in self.open_orders() if o.symbol == symbol and o.sign * held < 0)
        return max(abs(held) - sum(claimed, Decimal(0)), Decimal(0))

    def renew(self, cash: Decimal) -> None:
        """Another account, with nothing but cash."""
        self.ledger = Ledger(cash, self._seed + self.account_number)
        self.account_number += 1

    # ---- telling --------------------------------------------------------------------------------------------------

    def tell(self, event: str, order: Order, moment: float, **fill: Any) -> None:
        """An event of an order, to everybody."""
        self._executions += 1
        if not order.updated:
            order.updated = order.submitted
        if not order.open:
            self._live.pop(order.id, None)
        self.hear(
            "order",
            {
                "event": event,
                "execution_id": str(uuid.uuid5(NAMESPACE, f"{self._seed}/execution/{self._executions}")),
                "order": order.plain(),
                "timestamp": stamp(moment),
                **fill,
            },
        )

    def hear(self, kind: str, event: dict[str, Any]) -> None:
        for listener in self.listeners:
            listener(kind, event)

    # ---- keeping --------------------------------------------------------------------------------------------------

    def kept(self) -> dict[str, Any]:
        """For the state file."""
        return {
            "orders": [o.kept() for o in self.orders.values()],
            "ledger": self.ledger.kept(),
            "counters": [self._executions, self.account_number],
            "stamp": self._stamp,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        orders = [Order.restored(o) for o in values["orders"]]
        self.orders = {o.id: o for o in orders}
        self.by_client_id = {o.client_order_id: o for o in orders}
        self._live = {o.id: o for o in orders if o.open}
        self.ledger.restore(values["ledger"])
        self._executions, self.account_number = values["counters"]
        self._stamp = values["stamp"]
