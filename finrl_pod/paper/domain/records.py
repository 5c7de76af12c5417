"""Immutable records exchanged by the daemon and a broker. Quantities and prices are Decimal, times aware and in UTC.

Imports neither torch nor numpy nor the library of a broker, so that commands that only read the journal start quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum

SUMMARY = "summary"  # kind of the alert that is the summary of the day
CLIENT_ORDER_ID_MAX = 48  # Alpaca documents 48 and 128 characters: the shorter limit satisfies both


class Side(StrEnum):
    """Direction of an order or fill."""

    BUY = "buy"
    SELL = "sell"

    @property
    def sign(self) -> int:
        """+1 to buy, -1 to sell."""
        return 1 if self is Side.BUY else -1

    @property
    def opposite(self) -> Side:
        """The other side."""
        return Side.SELL if self is Side.BUY else Side.BUY


class OrderType(StrEnum):
    """Pricing of an order."""

    MARKET = "market"
    LIMIT = "limit"


class TimeInForce(StrEnum):
    """When an order may fill: in the opening auction, the closing auction, during the day, or until cancelled."""

    OPG = "opg"
    CLS = "cls"
    DAY = "day"
    GTC = "gtc"


class OrderStatus(StrEnum):
    """Order status as the broker names it; UNKNOWN for any other value."""

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
        """True if no further fill is expected. A fill that arrives later is still recorded."""
        return self in _TERMINAL

    @classmethod
    def parse(cls, name: str) -> OrderStatus:
        """Return the status of that name, UNKNOWN for any other name."""
        try:
            return cls(name)
        except ValueError:
            return cls.UNKNOWN


_TERMINAL = frozenset(
    {OrderStatus.FILLED, OrderStatus.CANCELED, OrderStatus.EXPIRED, OrderStatus.REPLACED, OrderStatus.REJECTED}
)


@dataclass(frozen=True)
class OrderRequest:
    """An order to submit. quantity: shares, above zero. limit_price: None unless the order is a LIMIT order."""

    client_order_id: str
    symbol: str
    side: Side
    quantity: Decimal
    time_in_force: TimeInForce
    type: OrderType = OrderType.MARKET
    limit_price: Decimal | None = None


@dataclass(frozen=True)
class Order:
    """An order as reported by the broker.

    id: id at the broker. filled_quantity: cumulative shares. filled_average_price: None before the first fill.
    raw_status: the broker status, verbatim. replaces, replaced_by: broker ids of the order before and after.
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
    raw_status: str = ""

    @property
    def live(self) -> bool:
        """True if the order may still fill."""
        return not self.status.terminal


@dataclass(frozen=True)
class Fill:
    """One execution. quantity: shares of this execution; cumulative_quantity: filled shares of the order, including
    this one.

    id: the broker execution id, unique per account. fee: charged by the broker, in currency.
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
    """All fills after a cursor, oldest first, and the cursor of the next query (unchanged if there were none)."""

    fills: tuple[Fill, ...]
    cursor: str | None


@dataclass(frozen=True)
class OrderUpdate:
    """A message of the broker stream: `order` at that time, and the execution of a (partial) fill.

    event: name of the broker (new, fill, partial_fill, canceled, ...). May arrive late, twice, or out of order.
    """

    event: str
    order: Order
    time: datetime
    fill: Fill | None = None


@dataclass(frozen=True)
class StreamState:
    """Health of the stream. last_message: time of the last update or reply; pings do not count.

    last_update: time of the last update. refusals: consecutive refused connections. offered: False if the broker has no
    stream.
    """

    connected: bool
    last_message: datetime | None = None
    refusals: int = 0
    detail: str = ""
    offered: bool = True
    last_update: datetime | None = None


@dataclass(frozen=True)
class Position:
    """Net shares of one symbol, negative when short. price: price per share, None if the broker reports none."""

    symbol: str
    quantity: Decimal
    price: Decimal | None = None


@dataclass(frozen=True)
class AccountState:
    """The broker account, amounts in its currency. block: why the broker takes no orders, empty if it does."""

    id: str
    cash: Decimal
    equity: Decimal
    buying_power: Decimal
    block: str = ""


@dataclass(frozen=True)
class Asset:
    """Tradability of a symbol."""

    symbol: str
    tradable: bool
    fractionable: bool = False


SOLD_BY_OTHERS = "taken_by_others"  # stored kind of a write-off, in the same table as the corporate actions


class ActionKind(StrEnum):
    """Kinds of corporate action, and deposits and withdrawals of cash (TRANSFER).

    MERGER (also a change of name) and SPIN_OFF are recorded once the broker books them. OTHER is reported but never
    recorded automatically.
    """

    SPLIT = "split"
    CASH_DIVIDEND = "cash_dividend"
    STOCK_DIVIDEND = "stock_dividend"
    MERGER = "merger"
    SPIN_OFF = "spin_off"
    TRANSFER = "transfer"
    OTHER = "other"


@dataclass(frozen=True)
class AccountActivity:
    """A change of the account that is no trade. quantity: change of its shares. cash: change of its cash.

    symbol: "" for a TRANSFER. group: the same for activities that belong together.
    """

    id: str
    kind: ActionKind
    symbol: str
    quantity: Decimal
    cash: Decimal
    created: datetime
    group: str


@dataclass(frozen=True)
class CorporateAction:
    """A corporate action. SPLIT, STOCK_DIVIDEND: `old` shares become `new`. CASH_DIVIDEND: `cash` per share.

    id: unique and stable over queries. ex_date: New York date from which prices exclude the action.
    """

    id: str
    kind: ActionKind
    symbol: str
    ex_date: date
    new: Decimal = Decimal(1)
    old: Decimal = Decimal(1)
    cash: Decimal = Decimal(0)
    detail: str = ""

    @property
    def ratio(self) -> Decimal:
        """Shares after per share before."""
        return self.new / self.old

    @property
    def changes_shares(self) -> bool:
        """True if the number of shares changes, so that prices from `ex_date` on refer to the new shares."""
        return self.kind in (ActionKind.SPLIT, ActionKind.STOCK_DIVIDEND)


@dataclass(frozen=True)
class Session:
    """One trading day: New York date, and open and close of the regular session."""

    date: date
    open: datetime
    close: datetime


class Reason(StrEnum):
    """Why a broker refused an order, a cancel or a replacement."""

    INVALID = "invalid"  # 422: parameters, unknown asset, price form, order rules
    BUYING_POWER = "buying_power"
    HELD_FOR_ORDERS = "held_for_orders"  # shares are reserved for other open orders
    INSUFFICIENT_QUANTITY = "insufficient_quantity"
    WASH_TRADE = "wash_trade"
    DUPLICATE_ID = "duplicate_id"  # an order with this client_order_id exists
    NOT_TRADABLE = "not_tradable"
    NOT_CANCELABLE = "not_cancelable"  # of a cancel or replace: it filled or ended first
    NOT_FOUND = "not_found"
    RATE_LIMITED = "rate_limited"  # 429: not accepted; may be sent again at retry_at
    BLOCKED = "blocked"  # the account accepts no orders
    OTHER = "other"


@dataclass(frozen=True)
class Confirmed:
    """The broker accepted the request. order: reported order (a replace: the new order; None for a cancel)."""

    order: Order | None = None


@dataclass(frozen=True)
class Rejected:
    """The broker refused the request. retry_at: time from which it may be sent again, None if never."""

    reason: Reason
    message: str
    retry_at: datetime | None = None


@dataclass(frozen=True)
class Ambiguous:
    """Unknown outcome: timeout, connection reset, 5xx, or a body that is not JSON. Only a look-up resolves it."""

    message: str


Outcome = Confirmed | Rejected | Ambiguous
