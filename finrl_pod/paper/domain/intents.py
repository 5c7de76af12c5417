"""Order intents: the trade of one symbol that a decision calls for, and the deterministic ids of its orders.

An id derived from run, decision bar, symbol, side and attempt makes submission idempotent: an intent that is processed
again after a crash finds its own order at the broker instead of creating a second one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum

from finrl_pod.paper.domain.records import CLIENT_ORDER_ID_MAX, OrderRequest, OrderType, Side, TimeInForce

PREFIX = "fp1"
FLATTEN = "flatten"  # start of the bar of an intent if a flatten command made it
_SEPARATOR = "."
_HASH_DIGITS = 10  # hexadecimal digits that replace a part which is too long or not alphanumeric
_MAX_LENGTHS = {"run": 12, "bar": 12, "symbol": 12}
_BAR_SEPARATORS = str.maketrans("", "", "-T:")  # of dates and times
MAX_ATTEMPT = 99


class IntentState(StrEnum):
    """OPEN until every share is filled or the rest is given up; the other states name the reason."""

    OPEN = "open"
    DONE = "done"
    EXPIRED = "expired"
    REJECTED = "rejected"
    CANCELED = "canceled"
    WITHHELD = "withheld"  # blocked by a risk limit or a halt

    @property
    def final(self) -> bool:
        """True if no further order is sent for the intent."""
        return self is not IntentState.OPEN


@dataclass(frozen=True)
class Intent:
    """Shares of one symbol to buy or sell, as decided on `bar`.

    bar: ISO date of the decision bar, or date and time, or the id of a flatten command. quantity: shares, above zero.
    reference_price: price used for sizing. opens, deadline: first and last moment at which orders may be sent.
    ends: moment after which no fill is expected.
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

    @property
    def flattens(self) -> bool:
        """True if a flatten command made it."""
        return self.bar.startswith(f"{FLATTEN}-")

    def request(self, attempt: int, quantity: Decimal) -> OrderRequest:
        """Return order request number `attempt` (from 0)."""
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
    """Return the deterministic id of an order: letters, digits, '-' and '.', at most 48 characters."""
    if not 0 <= attempt <= MAX_ATTEMPT:
        raise ValueError(f"attempt must be 0 to {MAX_ATTEMPT}, got {attempt}")
    parts = [_shorten(run, _MAX_LENGTHS["run"]), _short_bar(bar), _shorten(symbol, _MAX_LENGTHS["symbol"])]
    order_id = _SEPARATOR.join((PREFIX, *parts, f"{side.value[0]}{attempt}"))
    assert len(order_id) <= CLIENT_ORDER_ID_MAX, order_id
    return order_id


def parse_order_id(order_id: str, runs: Iterable[str], submission_date: date) -> tuple[str, str] | None:
    """Return run and bar of an order of one of these runs; None for any other.

    submission_date: date of the order. A bar that the id has only as a hash is returned as that hash.
    """
    run = next((run for run in runs if is_run_order_id(order_id, run)), None)
    parts = order_id.split(_SEPARATOR)
    if run is None or len(parts) != 5:
        return None
    short = parts[2]
    day = f"{short[:4]}-{short[4:6]}-{short[6:8]}"
    if short.startswith(FLATTEN):
        bars = [f"{FLATTEN}-{short.removeprefix(FLATTEN)}"]
    elif short.isdigit() and len(short) in (8, 12):
        bars = [day if len(short) == 8 else f"{day}T{short[8:10]}:{short[10:]}"]
    else:
        bars = [f"{FLATTEN}-{submission_date.isoformat()}"]
    return run, next((bar for bar in bars if _short_bar(bar) == short), short)


def is_program_order_id(client_order_id: str) -> bool:
    """Return True if the order was sent by any run of this program."""
    return client_order_id.startswith(f"{PREFIX}{_SEPARATOR}")


def is_run_order_id(client_order_id: str, run: str) -> bool:
    """Return True if the order was sent by this run."""
    return client_order_id.startswith(f"{PREFIX}{_SEPARATOR}{_shorten(run, _MAX_LENGTHS['run'])}{_SEPARATOR}")


def _short_bar(bar: str) -> str:
    return _shorten(bar.translate(_BAR_SEPARATORS), _MAX_LENGTHS["bar"])


def _shorten(part: str, max_length: int) -> str:
    if len(part) <= max_length and part.isalnum() and part.isascii():
        return part
    return hashlib.sha256(part.encode()).hexdigest()[:_HASH_DIGITS]
