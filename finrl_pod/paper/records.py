"""What passes between the daemon and a broker. All frozen; quantities and prices are Decimal, times aware and in UTC.

Nothing here needs torch, numpy or a broker's library: the commands that only read the journal stay quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum

CLIENT_ORDER_ID_MAX = 48  # documents say 48 or 128: the shorter one holds at either


class Side(StrEnum):
    """Direction of an order or fill."""

    BUY = "buy"
    SELL = "sell"

    @property
    def sign(self) -> int:
        """+1 for a purchase, -1 for a sale."""
        return 1 if self is Side.BUY else -1

    @property
    def opposite(self) -> Side:
        """The other one."""
        return Side.SELL if self is Side.BUY else Side.BUY


class OrderType(StrEnum):
    """How an order is priced."""

    MARKET = "market"
    LIMIT = "limit"


class TimeInForce(StrEnum):
    """When an order may fill: in the opening auction, in the closing one, during the day, until cancelled."""

    OPG = "opg"
    CLS = "cls"
    DAY = "day"
    GTC = "gtc"


class OrderStatus(StrEnum):
    """The broker's own words for an order's state. UNKNOWN stands for a word that this version has never heard."""

    NEW = "new"
    PARTIALLY_FILLED = "partially_filled"
    FILLED = "filled"
    DONE_FOR_DAY = "done_for_day"
    CANCELED = "canceled"
    EXPIRED = "expired"
    REPLACED = "replaced"
    PENDING_CANCEL = "pending_cancel"
    PENDING_REPLACE = "pending_replace"
    PENDING_REVIEW = "pending_review"
    ACCEPTED = "accepted"
    PENDING_NEW = "pending_new"
    ACCEPTED_FOR_BIDDING = "accepted_for_bidding"
    STOPPED = "stopped"
    REJECTED = "rejected"
    SUSPENDED = "suspended"
    CALCULATED = "calculated"
    HELD = "held"
    UNKNOWN = "unknown"

    @property
    def terminal(self) -> bool:
        """No further fill is expected (one that comes all the same is booked)."""
        return self in _TERMINAL

    @classmethod
    def read(cls, word: str) -> OrderStatus:
        """The status of that name, UNKNOWN for a new word."""
        try:
            return cls(word)
        except ValueError:
            return cls.UNKNOWN


_TERMINAL = frozenset(
    {OrderStatus.FILLED, OrderStatus.CANCELED, OrderStatus.EXPIRED, OrderStatus.REPLACED, OrderStatus.REJECTED}
)


@dataclass(frozen=True)
class OrderRequest:
    """What is to be submitted. quantity: shares, above zero. limit_price: for LIMIT orders alone."""

    client_order_id: str
    symbol: str
    side: Side
    quantity: Decimal
    time_in_force: TimeInForce
    type: OrderType = OrderType.MARKET
    limit_price: Decimal | None = None


@dataclass(frozen=True)
class Order:
    """An order as the broker sees it.

    id: the broker's. filled_quantity: cumulative shares. filled_average_price: None before the first fill.
    status_word: what the broker said, literally. replaces, replaced_by: broker ids of the order before and after.
    """

    id: str
    client_order_id: str
    symbol: str
    side: Side
    quantity: Decimal
    filled_quantity: Decimal
    status: OrderStatus
    time_in_force: TimeInForce
    type: OrderType
    submitted_at: datetime
    updated_at: datetime
    filled_average_price: Decimal | None = None
    limit_price: Decimal | None = None
    replaces: str | None = None
    replaced_by: str | None = None
    status_word: str = ""

    @property
    def live(self) -> bool:
        """May still fill in the ordinary course."""
        return not self.status.terminal


@dataclass(frozen=True)
class Fill:
    """One execution. quantity: shares of this execution; cumulative_quantity: of its order including this one.

    id: the broker's name for the execution, unique an account. fee: what the broker charged for it.
    """

    id: str
    order_id: str
    symbol: str
    side: Side
    quantity: Decimal
    cumulative_quantity: Decimal
    price: Decimal
    time: datetime
    fee: Decimal = Decimal(0)


@dataclass(frozen=True)
class FillPage:
    """All fills after a cursor, oldest first, and the cursor to ask with next (unchanged when there were none)."""

    fills: tuple[Fill, ...]
    cursor: str | None


@dataclass(frozen=True)
class OrderUpdate:
    """A message of the broker's stream: `order` as it then was, and the execution for a (partial) fill.

    event: the broker's word (new, fill, partial_fill, canceled, ...). May arrive late, twice, or out of order.
    """

    event: str
    order: Order
    time: datetime
    fill: Fill | None = None


@dataclass(frozen=True)
class StreamState:
    """Health of the stream. last_message: last update or reply to a listen; pings do not count. refusals: in a row.

    offered: False where this broker's client has no stream at all.
    """

    connected: bool
    last_message: datetime | None = None
    refusals: int = 0
    detail: str = ""
    offered: bool = True


@dataclass(frozen=True)
class Position:
    """Net shares of one symbol, negative when short. Prices per share; price None where the broker gave none."""

    symbol: str
    quantity: Decimal
    average_price: Decimal | None = None
    price: Decimal | None = None


@dataclass(frozen=True)
class AccountState:
    """The broker's account. Money in `currency`. last_equity: at the previous session's close.

    blocked: the broker refuses new orders. multiplier: 1 for a cash account, 2 or 4 with margin.
    """

    id: str
    currency: str
    cash: Decimal
    equity: Decimal
    last_equity: Decimal
    buying_power: Decimal
    blocked: bool = False
    multiplier: Decimal = Decimal(1)


@dataclass(frozen=True)
class Asset:
    """What may be done with a symbol."""

    symbol: str
    tradable: bool
    fractionable: bool = False
    shortable: bool = False
    status: str = "active"


TAKEN = "taken_by_others"  # kind of a booking in the journal beside those of corporate actions


class ActionKind(StrEnum):
    """Kinds of corporate action; OTHER is reported and never booked by itself."""

    SPLIT = "split"
    CASH_DIVIDEND = "cash_dividend"
    STOCK_DIVIDEND = "stock_dividend"
    OTHER = "other"


@dataclass(frozen=True)
class CorporateAction:
    """SPLIT: `old` shares become `new`. STOCK_DIVIDEND: the same form. CASH_DIVIDEND: `cash` a share.

    ex_date: New York date from which prices are without it. id: unique and the same at every query. payable_date: when
    cash is paid.
    """

    id: str
    kind: ActionKind
    symbol: str
    ex_date: date
    new: Decimal = Decimal(1)
    old: Decimal = Decimal(1)
    cash: Decimal = Decimal(0)
    payable_date: date | None = None
    detail: str = ""

    @property
    def ratio(self) -> Decimal:
        """Shares after, for each share before."""
        return self.new / self.old

    @property
    def changes_shares(self) -> bool:
        """Shares become another number of shares, and prices from `ex_date` on are of the new ones."""
        return self.kind in (ActionKind.SPLIT, ActionKind.STOCK_DIVIDEND)


@dataclass(frozen=True)
class Session:
    """One trading day: its New York date, and when the regular session opens and closes."""

    date: date
    open: datetime
    close: datetime


@dataclass(frozen=True)
class BrokerClock:
    """The broker's own time."""

    now: datetime
    is_open: bool
    next_open: datetime
    next_close: datetime


@dataclass(frozen=True)
class RateLimit:
    """What the broker last said of its limit: requests a minute, how many are left, when it starts over."""

    limit: int
    remaining: int
    reset: datetime


class Reason(StrEnum):
    """Why a broker definitely did not do what was asked."""

    INVALID = "invalid"  # 422: parameters, unknown asset, price form, order rules
    BUYING_POWER = "buying_power"
    HELD_FOR_ORDERS = "held_for_orders"  # shares are bound by other open orders
    INSUFFICIENT_QUANTITY = "insufficient_quantity"
    WASH_TRADE = "wash_trade"
    DUPLICATE_ID = "duplicate_id"  # an order with this client_order_id exists
    NOT_TRADABLE = "not_tradable"
    NOT_CANCELABLE = "not_cancelable"  # of a cancel or replace: it filled or ended first
    NOT_FOUND = "not_found"
    RATE_LIMITED = "rate_limited"  # 429: certainly not accepted; retry_at says when to ask again
    BLOCKED = "blocked"  # the account takes no orders
    OTHER = "other"


@dataclass(frozen=True)
class Confirmed:
    """The broker has it. order: as it answered (for a replace the new order; None for a cancel's empty answer)."""

    order: Order | None = None


@dataclass(frozen=True)
class Rejected:
    """The broker definitely does not have it. blocking_order_id: of the opposite order in a wash trade, where told."""

    reason: Reason
    message: str
    retry_at: datetime | None = None
    blocking_order_id: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ambiguous:
    """Nobody knows: a timeout, a reset, a 5xx, an answer that is not JSON. Only a look-up settles it."""

    message: str


Outcome = Confirmed | Rejected | Ambiguous
