"""An intent: what a decision wants of one symbol. Its orders carry names that follow from it and nothing else.

A name derived from run, decision bar, symbol, side and attempt cannot be given twice: an intent that is replayed
after a crash meets its own order at the broker instead of making a second one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from finrl_pod.paper.records import CLIENT_ORDER_ID_MAX, OrderRequest, OrderType, Side, TimeInForce

PREFIX = "fp1"
_SEPARATOR = "."
_HASHED = 10  # hexadecimal digits that stand for a part which is too long or has other characters
_LONGEST = {"run": 12, "bar": 12, "symbol": 12}
ATTEMPTS_MAX = 99


class IntentState(StrEnum):
    """OPEN until every share is filled or given up, for the reason that the others name."""

    OPEN = "open"
    DONE = "done"
    EXPIRED = "expired"
    REJECTED = "rejected"
    CANCELED = "canceled"
    WITHHELD = "withheld"  # a risk limit or a halt kept it back

    @property
    def final(self) -> bool:
        """Nothing more is sent for it."""
        return self is not IntentState.OPEN


@dataclass(frozen=True)
class Intent:
    """quantity: shares, above zero. reference_price: what it was sized at. bar: the decision's, or of a command.

    opens, deadline: orders may be sent from, and not after. ends: nothing of it is expected to fill after that.
    """

    run: str
    bar: str
    symbol: str
    side: Side
    quantity: Decimal
    time_in_force: TimeInForce
    type: OrderType
    limit_price: Decimal | None
    reference_price: Decimal
    opens: datetime
    deadline: datetime
    ends: datetime

    def request(self, attempt: int, quantity: Decimal) -> OrderRequest:
        """Its order number `attempt` (from 0) for `quantity` of it."""
        return OrderRequest(
            client_order_id=client_order_id(self.run, self.bar, self.symbol, self.side, attempt),
            symbol=self.symbol,
            side=self.side,
            quantity=quantity,
            time_in_force=self.time_in_force,
            type=self.type,
            limit_price=self.limit_price,
        )


def client_order_id(run: str, bar: str, symbol: str, side: Side, attempt: int) -> str:
    """Letters, digits, '-' and '.', at most 48 characters, the same for the same parts on every machine."""
    if not 0 <= attempt <= ATTEMPTS_MAX:
        raise ValueError(f"an intent has at most {ATTEMPTS_MAX + 1} orders, attempt {attempt} was asked for")
    parts = [
        _short(part, _LONGEST[name]) for name, part in (("run", run), ("bar", bar.replace("-", "")), ("symbol", symbol))
    ]
    made = _SEPARATOR.join((PREFIX, *parts, f"{side.value[0]}{attempt}"))
    assert len(made) <= CLIENT_ORDER_ID_MAX, made
    return made


def is_made_here(client_order_id: str) -> bool:
    """Whether an order of that name came from any run of this program."""
    return client_order_id.startswith(f"{PREFIX}{_SEPARATOR}")


def is_ours(client_order_id: str, run: str) -> bool:
    """Whether an order of that name came from this run."""
    return client_order_id.startswith(f"{PREFIX}{_SEPARATOR}{_short(run, _LONGEST['run'])}{_SEPARATOR}")


def _short(part: str, longest: int) -> str:
    if len(part) <= longest and part.isalnum() and part.isascii():
        return part
    return hashlib.sha256(part.encode()).hexdigest()[:_HASHED]
