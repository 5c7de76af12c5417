"""Parses Alpaca responses: JSON into records, error responses into outcomes of writes.

A field that is missing or malformed raises UnreadableResponse: such a response is not used in part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from finrl_pod.paper.brokers.alpaca.transport import ErrorResponse
from finrl_pod.paper.domain import records
from finrl_pod.paper.domain.intents import is_program_order_id

T = TypeVar("T")
NEW_YORK = ZoneInfo("America/New_York")
ZERO = Decimal(0)
_AMBIGUOUS_4XX = (408, 409, 425)  # timeout, conflict, too early: the order may have been accepted all the same
_BLOCKS = ("account_blocked", "trading_blocked", "trade_suspended_by_user")  # flags of an account
_BLOCKED_MESSAGES = (
    "rejected by user request", "account is not authorized", "account is restricted", "trading is blocked",
)  # fmt: skip
_ACTION_KINDS = {
    "forward_splits": records.ActionKind.SPLIT,
    "reverse_splits": records.ActionKind.SPLIT,
    "unit_splits": records.ActionKind.SPLIT,
    "cash_dividends": records.ActionKind.CASH_DIVIDEND,
    "stock_dividends": records.ActionKind.STOCK_DIVIDEND,
    "spin_offs": records.ActionKind.SPIN_OFF,
    **dict.fromkeys(
        ("cash_mergers", "stock_mergers", "stock_and_cash_mergers", "name_changes"), records.ActionKind.MERGER
    ),
}
_ACTIVITY_KINDS = {  # by type; DIV and all types that start with it are dividends
    **dict.fromkeys(("CSD", "CSW", "JNLC", "ACATC"), records.ActionKind.TRANSFER),
    **dict.fromkeys(("MA", "NC", "REO", "REORG"), records.ActionKind.MERGER),
    "SPIN": records.ActionKind.SPIN_OFF,
    "CGD": records.ActionKind.CASH_DIVIDEND,
}
_ACTION_SYMBOL_FIELDS = ("symbol", "old_symbol", "source_symbol", "acquiree_symbol", "acquirer_symbol")


class UnreadableResponse(Exception):
    """A response that does not have the documented form."""


# ---- records ------------------------------------------------------------------------------------------------------


def account(values: Any) -> records.AccountState:
    """Account state from GET account. Removed and new fields are ignored."""
    return records.AccountState(
        id=text(values, "account_number") if values.get("account_number") else text(values, "id"),
        cash=number(values, "cash"),
        equity=number(values, "equity"),
        buying_power=number(values, "buying_power"),
        block=", ".join(name for name in _BLOCKS if values.get(name) is True),
    )


def order(values: Any) -> records.Order:
    """Order of the REST API or the stream.

    An order for a dollar amount has no quantity: its filled quantity is used. Orders of other clients may lack symbol
    and side (multi-leg options have neither): see `_symbol_and_side`.
    """
    filled = number(values, "filled_qty") if values.get("filled_qty") is not None else ZERO
    status = text(values, "status")
    submission_time = moment(values, "submitted_at" if values.get("submitted_at") else "created_at")
    symbol, side = _symbol_and_side(values)
    return records.Order(
        id=text(values, "id"),
        client_order_id=text(values, "client_order_id"),
        symbol=symbol,
        side=side,
        quantity=filled if values.get("qty") is None else number(values, "qty"),
        filled_quantity=filled,
        status=records.OrderStatus.parse(status),
        time_in_force=_enum_or(records.TimeInForce, values.get("time_in_force"), records.TimeInForce.DAY),
        type=_enum_or(records.OrderType, values.get("type") or values.get("order_type"), records.OrderType.MARKET),
        submitted_at=submission_time,
        updated_at=moment(values, "updated_at") if values.get("updated_at") else submission_time,
        filled_average_price=optional_number(values, "filled_avg_price") if filled else None,
        limit_price=optional_number(values, "limit_price"),
        replaces=values.get("replaces") or None,
        replaced_by=values.get("replaced_by") or None,
        raw_status=status,
    )


def fill(values: Any) -> records.Fill:
    """Fill from a FILL activity."""
    return records.Fill(
        id=text(values, "id"),
        order_id=text(values, "order_id"),
        symbol=text(values, "symbol"),
        side=_side(values),
        quantity=number(values, "qty"),
        cumulative_quantity=number(values, "cum_qty"),
        price=number(values, "price"),
        time=moment(values, "transaction_time"),
    )


def activity(values: Any) -> records.AccountActivity:
    """Activity that is no fill. Fees, interest, splits and cancelled entries are OTHER."""
    name = text(values, "activity_type")
    kind = _ACTIVITY_KINDS.get(name, records.ActionKind.OTHER)
    if name.startswith("DIV"):
        kind = records.ActionKind.CASH_DIVIDEND
    if values.get("status") == "canceled":
        kind = records.ActionKind.OTHER
    symbol = str(values.get("symbol") or "")
    if not symbol and kind is not records.ActionKind.OTHER:
        kind = records.ActionKind.TRANSFER
    day = _date(values, "date")
    moves_shares = kind in (records.ActionKind.MERGER, records.ActionKind.SPIN_OFF)  # else it counts entitled shares
    return records.AccountActivity(
        id=text(values, "id"),
        kind=kind,
        symbol="" if kind is records.ActionKind.TRANSFER else symbol,
        quantity=(optional_number(values, "qty") or ZERO) if moves_shares else ZERO,
        cash=optional_number(values, "net_amount") or ZERO,
        created=moment(values, "created_at") if values.get("created_at") else datetime.combine(day, time(), UTC),
        group=str(values.get("group_id") or f"{name} of {day}"),
    )


def order_update(message: Any) -> records.OrderUpdate:
    """Order update from the data of a stream message."""
    if not isinstance(message, Mapping):
        raise UnreadableResponse("the message has no data")
    order_state = order(message.get("order"))
    event = text(message, "event")
    event_time = moment(message, "timestamp") if message.get("timestamp") else order_state.updated_at
    execution = None
    if event in ("fill", "partial_fill"):
        execution = records.Fill(
            id=str(message.get("execution_id") or f"{order_state.id}/{order_state.filled_quantity}"),
            order_id=order_state.id,
            symbol=order_state.symbol,
            side=order_state.side,
            quantity=number(message, "qty"),
            cumulative_quantity=order_state.filled_quantity,
            price=number(message, "price"),
            time=event_time,
        )
    return records.OrderUpdate(event, order_state, event_time, execution)


def position(values: Any) -> records.Position:
    """Position. The quantity of a short position is negative, whether or not the response writes a sign."""
    quantity = number(values, "qty")
    if values.get("side") == "short" and quantity > 0:
        quantity = -quantity
    return records.Position(text(values, "symbol"), quantity, optional_number(values, "current_price"))


def asset(values: Any) -> records.Asset:
    """Asset from GET assets."""
    return records.Asset(
        symbol=text(values, "symbol"),
        tradable=values.get("tradable") is True and values.get("status") == "active",
        fractionable=values.get("fractionable") is True,
    )


def clock(values: Any) -> datetime:
    """Time on the broker clock from GET clock."""
    return moment(values, "timestamp")


def session(values: Any) -> records.Session:
    """Session from a day of the calendar with open and close as "HH:MM" in New York."""
    day = _date(values, "date")
    local_times = [_parse(time.fromisoformat, values, name, "a time") for name in ("open", "close")]
    if local_times[0] >= local_times[1]:
        raise UnreadableResponse(f"the session of {day} closes before it opens")
    return records.Session(day, *(datetime.combine(day, local, NEW_YORK).astimezone(UTC) for local in local_times))


def corporate_action(group: str, values: Any, symbols: Collection[str]) -> records.CorporateAction:
    """Corporate action from an entry of the data API. The rate of a stock dividend is the new shares per share held.

    symbols: the requested ones. A merger names two companies: its symbol is the requested one, or the acquired one if
    both were requested. The symbol is "" if the entry names none of them.
    """
    symbol = [str(values[name]) for name in _ACTION_SYMBOL_FIELDS if values.get(name)]
    kind = _ACTION_KINDS.get(group, records.ActionKind.OTHER)
    new = old = Decimal(1)
    if kind is records.ActionKind.SPLIT and group != "unit_splits":
        new, old = number(values, "new_rate"), number(values, "old_rate")
    elif kind is records.ActionKind.SPLIT:
        kind = records.ActionKind.OTHER  # also gives shares of another company: not booked automatically
    elif kind is records.ActionKind.STOCK_DIVIDEND:
        new = 1 + number(values, "rate")
    day = "ex_date" if values.get("ex_date") else "process_date"
    return records.CorporateAction(
        id=text(values, "id"),
        kind=kind,
        symbol=next((symbol for symbol in symbol if symbol in symbols), ""),
        ex_date=_date(values, day),
        new=new,
        old=old,
        cash=number(values, "rate") if kind is records.ActionKind.CASH_DIVIDEND else ZERO,
        detail=f"{group} of {' and '.join(symbol)}",
    )


# ---- fields -------------------------------------------------------------------------------------------------------


def text(values: Any, name: str) -> str:
    """Non-empty text. Raises UnreadableResponse if it is missing."""
    value = values.get(name) if isinstance(values, Mapping) else None
    if not isinstance(value, str) or not value:
        raise UnreadableResponse(f"{name} is missing")
    return value


def number(values: Any, name: str) -> Decimal:
    """Finite number, from a JSON number or text. Raises UnreadableResponse for anything else."""
    value = values.get(name) if isinstance(values, Mapping) else None
    try:
        result = Decimal("NaN") if value is None or isinstance(value, bool) else Decimal(str(value))
    except InvalidOperation:
        result = Decimal("NaN")
    if not result.is_finite():
        raise UnreadableResponse(f"{name} is not a number: {value!r}")
    return result


def optional_number(values: Any, name: str) -> Decimal | None:
    """Finite number; None if missing or empty."""
    return None if values.get(name) in (None, "") else number(values, name)


def moment(values: Any, name: str) -> datetime:
    """RFC 3339 time in UTC; nanoseconds are truncated to microseconds."""
    local_time = _parse(datetime.fromisoformat, values, name, "a time")
    if local_time.tzinfo is None:
        raise UnreadableResponse(f"{name} has no time zone: {values.get(name)!r}")
    try:
        return local_time.astimezone(UTC)
    except OverflowError:
        raise UnreadableResponse(f"{name} is beyond the calendar in UTC: {values.get(name)!r}") from None


def _date(values: Any, name: str) -> date:
    return _parse(lambda value: date.fromisoformat(value[:10]), values, name, "a date")


def _parse(parse: Callable[[str], T], values: Any, name: str, kind: str) -> T:
    try:
        return parse(text(values, name))
    except ValueError:
        raise UnreadableResponse(f"{name} is not {kind}: {values.get(name)!r}") from None


def _symbol_and_side(values: Any) -> tuple[str, records.Side]:
    """Symbol and side. Without them, an order of another client gets its class in brackets, and any side."""
    try:
        return text(values, "symbol"), _side(values)
    except UnreadableResponse:
        if is_program_order_id(text(values, "client_order_id")):
            raise
        return f"({values.get('order_class') or 'no symbol'})", records.Side.BUY


def _side(values: Any) -> records.Side:
    """Side of an order or activity; activities also use sell_short."""
    side = text(values, "side")
    if side not in ("buy", "sell", "sell_short"):
        raise UnreadableResponse(f"unknown side: {side!r}")
    return records.Side.BUY if side == "buy" else records.Side.SELL


def _enum_or(enum: Any, value: Any, default: Any) -> Any:
    """Enum member of a value. The default stands for values that only orders of other clients have."""
    try:
        return enum(value)
    except ValueError:
        return default


# ---- error responses ----------------------------------------------------------------------------------------------


def refuses_keys(response: ErrorResponse) -> bool:
    """Whether an error response refuses the keys and not the request: 401, or a JSON 403 without a code.

    A feed without a subscription is also a 403 without a code; its message contains "subscription".
    """
    forbidden = response.status == 403 and "code" not in response.body and "subscription" not in response.message
    return response.status == 401 or (forbidden and response.from_broker)


def is_outage(response: ErrorResponse) -> bool:
    """Whether an error response says nothing about the request: a server error, a time-out, or a page of a proxy."""
    is_answer = response.from_broker or response.status == 429
    return response.status >= 500 or response.status in _AMBIGUOUS_4XX or not is_answer


def write_outcome(response: ErrorResponse, now: datetime, *, cancels: bool) -> records.Rejected | records.Ambiguous:
    """Outcome of a write that got an error response. cancels: the write was a cancel."""
    status = response.status
    message = response.message
    if is_outage(response):
        return records.Ambiguous(f"the broker responded {status}: {message}")
    if status == 429:
        return records.Rejected(records.Reason.RATE_LIMITED, message, retry_at=now + timedelta(seconds=response.wait))
    return records.Rejected(_rejection_reason(response, cancels=cancels), message)


def _rejection_reason(response: ErrorResponse, *, cancels: bool) -> records.Reason:
    """Reason of a rejection, from status and message: Alpaca documents disagree about the codes."""
    status = response.status
    message = response.message.lower()
    if status == 404:
        return records.Reason.NOT_FOUND
    if "client_order_id must be unique" in message:
        return records.Reason.DUPLICATE_ID
    if "wash trade" in message:
        return records.Reason.WASH_TRADE
    if "insufficient qty" in message:
        reserved_quantity = str(response.body.get("held_for_orders", "0"))
        return (
            records.Reason.INSUFFICIENT_QUANTITY
            if reserved_quantity.strip("0.") == ""
            else records.Reason.HELD_FOR_ORDERS
        )
    if "buying power" in message:
        return records.Reason.BUYING_POWER
    if any(part in message for part in _BLOCKED_MESSAGES):
        return records.Reason.BLOCKED
    if "not tradable" in message or "not active" in message:
        return records.Reason.NOT_TRADABLE
    if cancels and status == 422 and ("state" in message or "cancelable" in message):
        return records.Reason.NOT_CANCELABLE
    return records.Reason.INVALID if status in (400, 422) else records.Reason.OTHER
