"""Interfaces of paper trading: `Broker`, `DataFeed` and `Clock`. One contract test suite runs against every broker.

Errors (finrl_pod.errors):

BrokerError                 raised by reads; writes return an Outcome instead and raise only AuthenticationError
├── BrokerUnavailable       no usable response: timeout, connection reset, 5xx, unreadable content; retry later
├── BrokerRejected          the broker refused the request (4xx); retrying gives the same response
└── AuthenticationError     401, or 403 without a code: send no more orders
AddressNotAllowed           a URL off the allow-list, found before any key is sent
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from finrl_pod.paper.domain import records

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Adjustment = Literal["raw", "all"]
COLUMNS = ("open", "high", "low", "close", "volume")  # of a BarTable


@runtime_checkable
class Clock(Protocol):
    """Time for the daemon, its timeouts and its rate limiter; real, scaled or set by hand."""

    def now(self) -> datetime:
        """Current time, timezone-aware in UTC."""

    def monotonic(self) -> float:
        """Seconds of this clock since an arbitrary start; never decreases."""

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        """Wait that many seconds of this clock, at most `max_real_seconds` of real time; none for 0 or less."""

    def real_seconds(self, seconds: float) -> float:
        """Real duration of that many seconds of this clock, for socket timeouts; a scaled clock has a lower bound."""


@runtime_checkable
class Broker(Protocol):
    """A paper-trading account. Every call has a time limit, and methods may be called from two threads at once.

    Reads raise BrokerError and never return a partial result: a failed query of positions is not an empty portfolio.
    Writes are sent once and never retried; their result is an Outcome.
    """

    name: str

    def account(self) -> records.AccountState:
        """Cash, equity and buying power."""

    def positions(self) -> tuple[records.Position, ...]:
        """All open positions of the account, including positions of other clients."""

    def submit(self, request: records.OrderRequest) -> records.Outcome:
        """Send an order once. A repeated client_order_id gives Rejected(DUPLICATE_ID), not a second order."""

    def cancel(self, order_id: str) -> records.Outcome:
        """Request a cancel by broker id. Confirmed means that the request was accepted; the order may still fill."""

    def order(self, order_id: str) -> records.Order | None:
        """Order by broker id; None if the broker has none (404)."""

    def order_by_client_id(self, client_order_id: str) -> records.Order | None:
        """Order by client order id. Shortly after an ambiguous submit, a single None proves nothing."""

    def orders(self, status: Literal["open", "all"], after: datetime | None = None) -> tuple[records.Order, ...]:
        """All orders with this status that were submitted after a time, oldest first, across all pages."""

    def fills_since(self, cursor: str | None) -> records.FillPage:
        """All fills after the cursor (None: since the account was opened), across all pages."""

    def activities(self, after: datetime) -> tuple[records.AccountActivity, ...]:
        """Dividends, mergers, spin-offs and transfers of cash that were booked after a time, oldest first."""

    def updates(self) -> tuple[records.OrderUpdate, ...]:
        """Stream messages since the last call, without waiting. They are hints: `orders` and `fills_since` decide."""

    def stream(self) -> records.StreamState:
        """Health of the stream; offered=False for a broker without one."""

    def reconnect_stream(self) -> None:
        """Drop the stream connection and open another one in the background."""

    def assets(self, symbols: Sequence[str]) -> Mapping[str, records.Asset]:
        """Assets by symbol; symbols unknown to the broker are missing."""

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> tuple[records.CorporateAction, ...]:
        """Corporate actions with start <= ex_date <= end."""

    def clock(self) -> datetime:
        """The time on the broker clock."""

    def calendar(self, start: date, end: date) -> tuple[records.Session, ...]:
        """Sessions with start <= date <= end, in order."""

    def close(self) -> None:
        """Close stream and connections. Orders are left as they are."""


@dataclass(frozen=True, eq=False)
class BarTable:
    """Bars as a feed delivered them, unchecked: faulty values are kept, a missing bar is NaN in all columns.

    times: [T] datetime64[ns], of daily bars each session date at 00:00, of minute bars their start in UTC.
    open ... volume: [T, N] float64.
    feed: source of the bars ("iex", "sip", "panel").
    """

    times: NDArray[np.datetime64]
    symbols: tuple[str, ...]
    open: NDArray[np.float64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    close: NDArray[np.float64]
    volume: NDArray[np.float64]
    feed: str

    def rows(self, rows: slice) -> BarTable:
        """Return the table of some rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in ("times", *COLUMNS)})


@runtime_checkable
class DataFeed(Protocol):
    """Prices for decisions. Raises BrokerError like the reads of a broker."""

    name: str

    def bars(self, symbols: Sequence[str], start: date, end: date, adjustment: Adjustment) -> BarTable:
        """Daily bars of the completed sessions from start to end, one column per symbol in the given order."""

    def minute_bars(self, symbols: Sequence[str], start: datetime, end: datetime, adjustment: Adjustment) -> BarTable:
        """Bars of the completed minutes with start <= their start < end; an empty table if the feed has none."""

    def latest(self, symbols: Sequence[str]) -> Mapping[str, tuple[Decimal, datetime]]:
        """Last trade price of each symbol and its time; symbols without a trade are missing."""
