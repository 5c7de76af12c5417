"""Orders: the record that the exchange stores, and its JSON in the Alpaca API."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from finrl_pod.fake_alpaca.wire_format import NANO, asset_id, decimal_text, floor_shares, timestamp

ORDER_CLASSES = ("simple", "bracket", "oco", "oto")
OPEN_STATUSES = (
    "new", "partially_filled", "accepted", "pending_new", "pending_cancel", "pending_replace", "held",
)  # fmt: skip


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

    The field names are part of the state file.
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
        return floor_shares((self.notional - self.value) / self.reserve)

    def to_json(self, legs: Sequence[Order] = ()) -> dict[str, Any]:
        """JSON of the order in the REST API and the stream. legs: orders to show within it."""
        moments = {name: self._timestamp(name) for name in ("filled", "expired", "canceled", "failed", "replaced")}
        average = self.value / self.filled if self.filled else None
        return {
            "id": self.id,
            "client_order_id": self.client_order_id,
            "created_at": timestamp(self.submitted_at),
            "updated_at": timestamp(self.updated_at or self.submitted_at),
            "submitted_at": timestamp(self.submitted_at),
            **{f"{name}_at": moment for name, moment in moments.items()},
            "replaced_by": self.replaced_by,
            "replaces": self.replaces,
            "asset_id": asset_id(self.symbol),
            "symbol": self.symbol,
            "asset_class": "crypto" if "/" in self.symbol else "us_equity",
            "notional": decimal_text(self.notional),
            "qty": decimal_text(self.qty),
            "filled_qty": decimal_text(self.filled),
            "filled_avg_price": None if average is None else decimal_text(average.quantize(NANO)),
            "order_class": self.order_class,
            "order_type": self.type,
            "type": self.type,
            "side": self.side,
            "position_intent": self.position_intent,
            "time_in_force": self.time_in_force,
            "limit_price": decimal_text(self.limit_price),
            "stop_price": decimal_text(self.stop_price),
            "status": self.status,
            "extended_hours": self.extended_hours,
            "legs": [leg.to_json() for leg in legs] or None,
            "trail_percent": None,
            "trail_price": None,
            "hwm": None,
            "expires_at": timestamp(self.expires),
        }

    def _timestamp(self, name: str) -> str | None:
        return timestamp(self.moments[name]) if name in self.moments else None

    def state(self) -> dict[str, Any]:
        """All fields for the state file, with Decimals as text."""
        values = dataclasses.asdict(self)
        return {k: str(v) if isinstance(v, Decimal) else v for k, v in values.items()}

    @classmethod
    def from_state(cls, values: Mapping[str, Any]) -> Order:
        """Restore an order from the fields returned by `state`."""
        decimals = ("qty", "notional", "limit_price", "stop_price", "reserve", "filled", "value")
        fields: dict[str, Any] = {k: Decimal(v) if k in decimals and v is not None else v for k, v in values.items()}
        return cls(**fields)
