"""Alpaca's JSON as records. What is missing or has another form raises Unreadable: then nothing is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

from finrl_pod.paper.execution.intents import is_made_here
from finrl_pod.paper.records import (
    AccountState,
    ActionKind,
    Asset,
    BrokerClock,
    CorporateAction,
    Fill,
    Order,
    OrderStatus,
    OrderType,
    OrderUpdate,
    Position,
    Session,
    Side,
    TimeInForce,
)

NEW_YORK = ZoneInfo("America/New_York")
ZERO = Decimal(0)


class Unreadable(Exception):
    """An answer that is not what the broker's documents promise."""


def account(values: Any) -> AccountState:
    """GET account; fields that were removed, or are new, do not matter."""
    return AccountState(
        id=word(values, "account_number") if values.get("account_number") else word(values, "id"),
        currency=str(values.get("currency") or "USD"),
        cash=number(values, "cash"),
        equity=number(values, "equity"),
        last_equity=number(values, "last_equity"),
        buying_power=number(values, "buying_power"),
        blocked=any(values.get(k) is True for k in ("trading_blocked", "account_blocked", "trade_suspended_by_user")),
        multiplier=number(values, "multiplier") if values.get("multiplier") is not None else Decimal(1),
    )


def order(values: Any) -> Order:
    """An order of the REST API or the stream. An order by value has no quantity: what it has filled stands for it.

    An order of others may lack symbol and side (options of several legs have neither): see `_traded`.
    """
    filled = number(values, "filled_qty") if values.get("filled_qty") is not None else ZERO
    status = word(values, "status")
    submitted = moment(values, "submitted_at" if values.get("submitted_at") else "created_at")
    symbol, side = _traded(values)
    return Order(
        id=word(values, "id"),
        client_order_id=word(values, "client_order_id"),
        symbol=symbol,
        side=side,
        quantity=filled if values.get("qty") is None else number(values, "qty"),
        filled_quantity=filled,
        status=OrderStatus.read(status),
        time_in_force=_known(TimeInForce, values.get("time_in_force"), TimeInForce.DAY),
        type=_known(OrderType, values.get("type") or values.get("order_type"), OrderType.MARKET),
        submitted_at=submitted,
        updated_at=moment(values, "updated_at") if values.get("updated_at") else submitted,
        filled_average_price=optional(values, "filled_avg_price") if filled else None,
        limit_price=optional(values, "limit_price"),
        replaces=values.get("replaces") or None,
        replaced_by=values.get("replaced_by") or None,
        status_word=status,
    )


def fill(values: Any) -> Fill:
    """A FILL activity."""
    return Fill(
        id=word(values, "id"),
        order_id=word(values, "order_id"),
        symbol=word(values, "symbol"),
        side=_side(values),
        quantity=number(values, "qty"),
        cumulative_quantity=number(values, "cum_qty"),
        price=number(values, "price"),
        time=moment(values, "transaction_time"),
    )


def update(message: Any) -> OrderUpdate:
    """The data of a trade update."""
    known = order(message.get("order"))
    event = word(message, "event")
    at = moment(message, "timestamp") if message.get("timestamp") else known.updated_at
    execution = None
    if event in ("fill", "partial_fill"):
        execution = Fill(
            id=str(message.get("execution_id") or f"{known.id}/{known.filled_quantity}"),
            order_id=known.id,
            symbol=known.symbol,
            side=known.side,
            quantity=number(message, "qty"),
            cumulative_quantity=known.filled_quantity,
            price=number(message, "price"),
            time=at,
        )
    return OrderUpdate(event, known, at, execution)


def position(values: Any) -> Position:
    """A position; the API writes a short one's quantity below zero, and says so in `side`."""
    quantity = number(values, "qty")
    if values.get("side") == "short" and quantity > 0:
        quantity = -quantity
    return Position(
        word(values, "symbol"), quantity, optional(values, "avg_entry_price"), optional(values, "current_price")
    )


def asset(values: Any) -> Asset:
    return Asset(
        symbol=word(values, "symbol"),
        tradable=values.get("tradable") is True and values.get("status") == "active",
        fractionable=values.get("fractionable") is True,
        shortable=values.get("shortable") is True,
        status=str(values.get("status") or ""),
    )


def clock(values: Any) -> BrokerClock:
    return BrokerClock(
        now=moment(values, "timestamp"),
        is_open=values.get("is_open") is True,
        next_open=moment(values, "next_open"),
        next_close=moment(values, "next_close"),
    )


def session(values: Any) -> Session:
    """A day of the calendar: opening and close are "HH:MM" in New York."""
    day = _date(values, "date")

    def at(name: str) -> datetime:
        try:
            hour = time.fromisoformat(word(values, name))
        except ValueError:
            raise Unreadable(f"{name} is no time: {values.get(name)!r}") from None
        return datetime.combine(day, hour, NEW_YORK).astimezone(UTC)

    return Session(day, at("open"), at("close"))


_KINDS = {
    "forward_splits": ActionKind.SPLIT,
    "reverse_splits": ActionKind.SPLIT,
    "unit_splits": ActionKind.SPLIT,
    "cash_dividends": ActionKind.CASH_DIVIDEND,
    "stock_dividends": ActionKind.STOCK_DIVIDEND,
}


_NAMES = ("symbol", "old_symbol", "source_symbol", "acquiree_symbol", "acquirer_symbol")


def corporate_action(group: str, values: Any, symbols: Collection[str]) -> CorporateAction:
    """An entry of the data API's corporate actions. A stock dividend's rate is what each share gets in addition.

    symbols: those asked for. A merger names two companies: it is an action of the one that was asked for, of the one
    that is taken over where both were. An entry that names none of them has the symbol "".
    """
    named = [str(values[name]) for name in _NAMES if values.get(name)]
    kind = _KINDS.get(group, ActionKind.OTHER)
    new = old = Decimal(1)
    if kind is ActionKind.SPLIT and group != "unit_splits":
        new, old = number(values, "new_rate"), number(values, "old_rate")
    elif kind is ActionKind.SPLIT:
        kind = ActionKind.OTHER  # shares of another company: nothing to book by itself
    elif kind is ActionKind.STOCK_DIVIDEND:
        new = 1 + number(values, "rate")
    day = "ex_date" if values.get("ex_date") else "process_date"
    return CorporateAction(
        id=word(values, "id"),
        kind=kind,
        symbol=next((symbol for symbol in named if symbol in symbols), ""),
        ex_date=_date(values, day),
        new=new,
        old=old,
        cash=number(values, "rate") if kind is ActionKind.CASH_DIVIDEND else ZERO,
        payable_date=_date(values, "payable_date") if values.get("payable_date") else None,
        detail=f"{group} of {' and '.join(named)}",
    )


def word(values: Any, name: str) -> str:
    value = values.get(name) if isinstance(values, Mapping) else None
    if not isinstance(value, str) or not value:
        raise Unreadable(f"{name} is missing")
    return value


def number(values: Any, name: str) -> Decimal:
    """A finite number, written as text or not."""
    value = values.get(name) if isinstance(values, Mapping) else None
    try:
        result = Decimal("NaN") if value is None or isinstance(value, bool) else Decimal(str(value))
    except InvalidOperation:
        result = Decimal("NaN")
    if not result.is_finite():
        raise Unreadable(f"{name} is no number: {value!r}")
    return result


def optional(values: Any, name: str) -> Decimal | None:
    return None if values.get(name) in (None, "") else number(values, name)


def moment(values: Any, name: str) -> datetime:
    """RFC 3339, in UTC; nanoseconds are cut to microseconds."""
    try:
        found = datetime.fromisoformat(word(values, name))
    except ValueError:
        raise Unreadable(f"{name} is no time: {values.get(name)!r}") from None
    if found.tzinfo is None:
        raise Unreadable(f"{name} has no time zone: {values.get(name)!r}")
    return found.astimezone(UTC)


def _date(values: Any, name: str) -> date:
    try:
        return date.fromisoformat(word(values, name)[:10])
    except ValueError:
        raise Unreadable(f"{name} is no date: {values.get(name)!r}") from None


def _traded(values: Any) -> tuple[str, Side]:
    """Symbol and side of an order. Where one of others lacks any, its class in brackets is the symbol, which is no
    security's, and the side means nothing.
    """
    try:
        return word(values, "symbol"), _side(values)
    except Unreadable:
        if is_made_here(word(values, "client_order_id")):
            raise
        return f"({values.get('order_class') or 'no symbol'})", Side.BUY


def _side(values: Any) -> Side:
    """buy or sell; the activities also know sell_short."""
    side = word(values, "side")
    if side not in ("buy", "sell", "sell_short"):
        raise Unreadable(f"side is unknown: {side!r}")
    return Side.BUY if side == "buy" else Side.SELL


def _known(kind: Any, value: Any, otherwise: Any) -> Any:
    """A foreign order may be of a kind that we never send; its own words do not matter then."""
    try:
        return kind(value)
    except ValueError:
        return otherwise
