"""The ports of paper trading: the broker, its prices, and time. One contract suite runs over every broker.

Errors (finrl_pod.errors):

BrokerError                 reads raise these; writes return an Outcome, and raise AuthenticationError only
├── BrokerUnavailable       nothing is known: timeout, reset, 5xx, an answer that cannot be read; ask again later
├── BrokerRejected          the broker answered no (4xx); asking again gives the same answer
└── AuthenticationError     401, or a 403 without a code: no order may be sent any more
AddressNotAllowed           a URL off the allow-list, found before any key is sent
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from finrl_pod.paper.records import (
    AccountState,
    Asset,
    BrokerClock,
    CorporateAction,
    FillPage,
    Order,
    OrderRequest,
    OrderUpdate,
    Outcome,
    Position,
    RateLimit,
    Session,
    StreamState,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Adjustment = Literal["raw", "split", "all"]


@runtime_checkable
class Clock(Protocol):
    """Time as the daemon, its timeouts and its limiter see it. A scaled or stepped one makes a year pass in minutes."""

    def now(self) -> datetime:
        """Aware, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds of this clock since some moment; never runs backwards."""
        ...

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        """Wait that many of this clock's seconds, but `most` on the wall at most; none for zero or less."""
        ...

    def real_seconds(self, seconds: float) -> float:
        """How long that lasts on the wall, for the time limits of sockets. At least some milliseconds when scaled."""
        ...


@runtime_checkable
class Broker(Protocol):
    """A paper account. Every call has a bounded time limit. Methods may be called from two threads at once.

    Reads raise BrokerError and never return a part: a failed query of positions is no empty portfolio. Writes are
    made once, never repeated inside: what became of one is the Outcome.
    """

    name: str

    def account(self) -> AccountState:
        """Cash, equity, buying power."""
        ...

    def positions(self) -> tuple[Position, ...]:
        """All open positions of the account, foreign ones too."""
        ...

    def submit(self, request: OrderRequest) -> Outcome:
        """Send an order, once. The same client_order_id never makes a second order: Rejected(DUPLICATE_ID)."""
        ...

    def cancel(self, order_id: str) -> Outcome:
        """Ask for a cancel by the broker's id. Confirmed says that the wish was taken, not that the order is gone."""
        ...

    def replace(self, order_id: str, request: OrderRequest) -> Outcome:
        """Replace quantity and limit price. Confirmed.order is the new order, under request.client_order_id."""
        ...

    def order(self, order_id: str) -> Order | None:
        """By the broker's id; None where the broker says there is none (404)."""
        ...

    def order_by_client_id(self, client_order_id: str) -> Order | None:
        """The same by our id. One None proves nothing soon after an ambiguous submit."""
        ...

    def orders(self, status: Literal["open", "all"], after: datetime | None = None) -> tuple[Order, ...]:
        """Every order of that kind submitted after that moment, oldest first, paged through completely."""
        ...

    def fills_since(self, cursor: str | None) -> FillPage:
        """Every fill after the cursor (None: from the account's beginning), paged through completely."""
        ...

    def updates(self) -> tuple[OrderUpdate, ...]:
        """What the stream brought since the last call, without waiting. A hint: orders and fills are the authority."""
        ...

    def stream(self) -> StreamState:
        """Health of the stream. A broker without one says offered=False."""
        ...

    def renew_stream(self) -> None:
        """Give the stream's connection up for another one, without waiting for it."""
        ...

    def assets(self, symbols: Sequence[str]) -> Mapping[str, Asset]:
        """What may be traded. A symbol that the broker does not know is missing from the answer."""
        ...

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> tuple[CorporateAction, ...]:
        """Those with start <= ex_date <= end."""
        ...

    def clock(self) -> BrokerClock:
        """The broker's time."""
        ...

    def calendar(self, start: date, end: date) -> tuple[Session, ...]:
        """Sessions with start <= date <= end, in order."""
        ...

    def rate_limit(self) -> RateLimit | None:
        """What the last answer said of the limit, None where nothing was said."""
        ...

    def close(self) -> None:
        """Leave stream and connections. Does not touch orders."""
        ...


@dataclass(frozen=True, eq=False)
class BarTable:
    """Bars just as a feed delivered them, unchecked: faulty values stay, and no bar is NaN in all columns.

    times: [T] datetime64[ns], daily bars at their session's date 00:00; open ... volume: [T, N] float64.
    feed: where they come from (iex, sip, panel).
    """

    times: NDArray[np.datetime64]
    symbols: tuple[str, ...]
    open: NDArray[np.float64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    close: NDArray[np.float64]
    volume: NDArray[np.float64]
    feed: str


@runtime_checkable
class DataFeed(Protocol):
    """Prices for decisions. Raises BrokerError like a broker's reads."""

    name: str

    def bars(self, symbols: Sequence[str], start: date, end: date, adjustment: Adjustment) -> BarTable:
        """Daily bars of sessions start..end that are complete, one column a symbol in the order asked for."""
        ...

    def latest(self, symbols: Sequence[str]) -> Mapping[str, tuple[Decimal, datetime]]:
        """Last trade price of each symbol and its time; symbols without one are missing."""
        ...
