"""An order as the exchange keeps it, and as Alpaca writes it."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Any

from finrl_pod.fake_alpaca.sessions import stamp

OPEN = ("new", "partially_filled", "accepted", "pending_new", "pending_cancel", "pending_replace", "held")
# Names of everything that is made up carry this namespace, so that one seed gives the same ids every time.
NAMESPACE = uuid.UUID("6f3c1f0e-6f0a-4d0c-9a53-0f7d0c0ffee0")
_NINE = Decimal("1e-9")


class Refusal(Exception):
    """An answer that is not a success: HTTP status, Alpaca's code (or None), its sentence, and what goes with it."""

    def __init__(self, status: int, code: int | None, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {**({} if code is None else {"code": code}), "message": message, **more}


@dataclass(kw_only=True)
class Ticket:
    """What a client asks for, checked as far as that goes without knowing the account. Shares and dollars."""

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

    @property
    def fractional(self) -> bool:
        return self.notional is not None or (self.qty is not None and self.qty % 1 != 0)


@dataclass(kw_only=True)
class Order(Ticket):
    """A ticket that was taken. Quantities in shares, prices and values in dollars, moments in UTC epoch seconds.

    reserve: the price at which an open order keeps buying power. origin: who sent it, "client" or, through the control
    port, somebody else.
    """

    number: int
    id: str
    submitted: float
    expires: float
    reserve: Decimal
    status: str = "pending_new"
    updated: float = 0.0
    filled: Decimal = Decimal(0)
    value: Decimal = Decimal(0)
    replaces: str | None = None
    replaced_by: str | None = None
    origin: str = "client"
    moments: dict[str, float] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return self.status in OPEN

    @property
    def sign(self) -> int:
        return 1 if self.side == "buy" else -1

    @property
    def remaining(self) -> Decimal:
        """Shares not yet filled; a notional order's at its reserve price."""
        if self.qty is not None:
            return self.qty - self.filled
        assert self.notional is not None
        return shares((self.notional - self.value) / self.reserve)

    def plain(self) -> dict[str, Any]:
        """As the REST API and the stream write it."""
        moments = {name: self._moment(name) for name in ("filled", "expired", "canceled", "failed", "replaced")}
        average = self.value / self.filled if self.filled else None
        return {
            "id": self.id,
            "client_order_id": self.client_order_id,
            "created_at": stamp(self.submitted),
            "updated_at": stamp(self.updated or self.submitted),
            "submitted_at": stamp(self.submitted),
            **{f"{name}_at": moment for name, moment in moments.items()},
            "replaced_by": self.replaced_by,
            "replaces": self.replaces,
            "asset_id": asset_id(self.symbol),
            "symbol": self.symbol,
            "asset_class": "us_equity",
            "notional": text(self.notional),
            "qty": text(self.qty),
            "filled_qty": text(self.filled),
            "filled_avg_price": None if average is None else text(average.quantize(_NINE)),
            "order_class": "simple",
            "order_type": self.type,
            "type": self.type,
            "side": self.side,
            "position_intent": self.position_intent,
            "time_in_force": self.time_in_force,
            "limit_price": text(self.limit_price),
            "stop_price": text(self.stop_price),
            "status": self.status,
            "extended_hours": self.extended_hours,
            "legs": None,
            "trail_percent": None,
            "trail_price": None,
            "hwm": None,
            "expires_at": stamp(self.expires),
        }

    def _moment(self, name: str) -> str | None:
        return stamp(self.moments[name]) if name in self.moments else None

    def kept(self) -> dict[str, Any]:
        """For the state file: Decimals as text."""
        values = dataclasses.asdict(self)
        return {k: str(v) if isinstance(v, Decimal) else v for k, v in values.items()}

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> Order:
        amounts = ("qty", "notional", "limit_price", "stop_price", "reserve", "filled", "value")
        read: dict[str, Any] = {k: Decimal(v) if k in amounts and v is not None else v for k, v in values.items()}
        return cls(**read)


@cache
def asset_id(symbol: str) -> str:
    """The same for a symbol on every machine."""
    return str(uuid.uuid5(NAMESPACE, f"asset/{symbol}"))


def shares(quantity: Decimal) -> Decimal:
    """Rounded down to the nine decimals that a share has."""
    from decimal import ROUND_DOWN

    return quantity.quantize(_NINE, rounding=ROUND_DOWN)


def amount(value: float) -> Decimal:
    """A price out of the panel, at nine decimals at most."""
    return Decimal(repr(value)).quantize(_NINE).normalize()


def text(value: Decimal | None) -> str | None:
    """Plain digits without an exponent or trailing zeros, as the API writes numbers."""
    if value is None:
        return None
    plain = format(value.normalize(), "f")
    return "0" if plain in ("-0", "0") else plain
