"""Checks of a new order, with the status, code and message of Alpaca paper accounts for each refusal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from finrl_pod.fake_alpaca import wire_format as wire
from finrl_pod.fake_alpaca.account import ORDER_CLASSES, Order, OrderTicket, opening_quantity
from finrl_pod.fake_alpaca.prices import Session, Sessions, new_york
from finrl_pod.fake_alpaca.settings import Settings

_ORDER_TYPES = ("market", "limit", "stop", "stop_limit")
_CRYPTO_TIMES = ("gtc", "ioc")
_TIMES_IN_FORCE = ("day", "gtc", "opg", "cls", "ioc", "fok")
_PRICES_OF_TYPE = {"limit": ("limit_price",), "stop": ("stop_price",), "stop_limit": ("limit_price", "stop_price")}
_MIN_NOTIONAL = Decimal(1)  # dollars of a fractional order
_SHARE_DECIMALS = 9
_DOLLAR_DECIMALS = 2
_SUB_DOLLAR_DECIMALS = 4
_OPG_CUTOFF = (9, 28)  # New York time
_CLS_CUTOFF_SECONDS = 600.0  # before the close
_AUCTION_ORDERS_REOPEN_HOUR = 19  # New York time
_MAX_DAY_TRADES = 3
_DAY_TRADE_SESSIONS = 5
_DAY_TRADER_MIN_EQUITY = Decimal(25_000)
_PRICES_OF_LEG = {"take_profit": ("limit_price",), "stop_loss": ("stop_price", "limit_price")}  # the first is required
_TICK = Decimal("0.01")


def parse_order(body: Any, settings: Settings) -> OrderTicket:
    """The ticket in a request body. Raises ApiError for the first parameter that is missing or malformed."""
    if not isinstance(body, Mapping):
        raise wire.ApiError(400, wire.MALFORMED_BODY, "request body format is invalid")
    symbol = body.get("symbol")
    if not isinstance(symbol, str) or not symbol:
        raise wire.invalid_parameter("symbol is required")
    order_class = body.get("order_class") or "simple"
    if order_class not in ORDER_CLASSES or body.get("legs"):
        raise wire.invalid_parameter(f"invalid order_class: {str(order_class)[:40]}")
    side = _parse_choice(body, "side", ("buy", "sell"))
    order_type = _parse_choice(body, "type", _ORDER_TYPES)
    time_in_force = _parse_choice(body, "time_in_force", _CRYPTO_TIMES if settings.crypto else _TIMES_IN_FORCE)
    qty = parse_decimal(body, "qty")
    notional = parse_decimal(body, "notional")
    if qty is None and notional is None:
        raise wire.invalid_parameter("qty or notional is required")
    if qty is not None and notional is not None:
        raise wire.ApiError(
            settings.qty_and_notional_status, wire.INVALID_PARAMETER, "only one of qty or notional is accepted"
        )
    for name, value in (("qty", qty), ("notional", notional)):
        if value is not None and value <= 0:
            raise wire.invalid_parameter(f"{name} must be > 0")
    if qty is not None and _decimal_places(qty) > _SHARE_DECIMALS:
        raise wire.invalid_parameter(f"qty increment is limited to {_SHARE_DECIMALS} decimal points")
    if notional is not None and _decimal_places(notional) > _DOLLAR_DECIMALS:
        raise wire.invalid_parameter("notional value must be limited to 2 decimal places")
    limit = parse_decimal(body, "limit_price")
    stop = parse_decimal(body, "stop_price")
    if order_class == "oco" and limit is None and isinstance(body.get("take_profit"), Mapping):
        limit = parse_decimal(body["take_profit"], "limit_price")  # the parent is the take-profit
    client_order_id = str(body.get("client_order_id") or "")
    if len(client_order_id) > settings.max_client_order_id_length:
        raise wire.invalid_parameter(
            f"client_order_id must be no more than {settings.max_client_order_id_length} characters"
        )
    ticket = OrderTicket(
        client_order_id=client_order_id,
        symbol=symbol,
        side=side,
        type=order_type,
        time_in_force=time_in_force,
        qty=qty,
        notional=notional,
        limit_price=limit,
        stop_price=stop,
        extended_hours=body.get("extended_hours") is True,
        position_intent=body.get("position_intent"),
        order_class=order_class,
    )
    _check_prices(ticket, crypto=settings.crypto)
    return ticket


def parse_decimal(body: Mapping[str, Any], name: str) -> Decimal | None:
    """A finite number, as JSON number or text; None if missing. Raises ApiError for anything else."""
    value = body.get(name)
    if value is None:
        return None
    try:
        return wire.parse_number(value)
    except ValueError:
        raise wire.invalid_parameter(f"{name} is not a number") from None


def _parse_choice(body: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = body.get(name)
    if value is None:
        raise wire.invalid_parameter(f"{name} is required")
    if value not in choices:
        raise wire.invalid_parameter(f"invalid {name}: {value}")
    return str(value)


def _check_prices(ticket: OrderTicket, *, crypto: bool) -> None:
    for name in ("limit_price", "stop_price"):
        price = getattr(ticket, name)
        is_required = name in _PRICES_OF_TYPE.get(ticket.type, ())
        if is_required and price is None:
            raise wire.invalid_parameter(f"{ticket.type} orders require {name.replace('_', ' ')}")
        if not is_required and price is not None:
            raise wire.invalid_parameter(f"{ticket.type} orders require no {name.replace('_', ' ')}")
        if price is not None:
            check_price_increment(name, price)
    if ticket.fractional and ticket.time_in_force != "day" and not crypto:
        raise wire.unprocessable("fractional orders must be DAY orders")
    if ticket.time_in_force in ("opg", "cls") and ticket.type not in ("market", "limit"):
        raise wire.unprocessable(f"{ticket.time_in_force} orders must be market or limit orders")
    if ticket.extended_hours and (ticket.type != "limit" or ticket.time_in_force not in ("day", "gtc")):
        raise wire.unprocessable("extended hours order must be DAY or GTC limit orders")


def check_price_increment(name: str, price: Decimal) -> None:
    """Refuse a price with more than two decimals from a dollar on, or four below, and any price of 0 or less."""
    if price <= 0:
        raise wire.invalid_parameter(f"{name} must be > 0")
    if _decimal_places(price) > (_DOLLAR_DECIMALS if price >= 1 else _SUB_DOLLAR_DECIMALS):
        raise wire.unprocessable(
            f"invalid {name} {price}. sub-penny increment does not fulfill minimum pricing criteria"
        )


def _decimal_places(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


def check_auction_hours(time_in_force: str, moment: float, today: Session | None) -> None:
    """On session days, refuse opg from 9:28 and cls from ten minutes before the close, both until 19:00 (New York)."""
    if today is None or moment >= today.at(_AUCTION_ORDERS_REOPEN_HOUR):
        return
    if time_in_force == "opg" and moment >= today.at(*_OPG_CUTOFF):
        raise wire.unprocessable("opg orders are not accepted between 9:28am and 7:00pm ET")
    if time_in_force == "cls" and moment >= today.close - _CLS_CUTOFF_SECONDS:
        raise wire.unprocessable("cls orders are not accepted between 10 minutes before the close and 7:00pm ET")


def check_min_notional(ticket: OrderTicket, price: Decimal) -> None:
    """Refuse a fractional order worth less than a dollar."""
    cost = ticket.notional if ticket.notional is not None else (ticket.qty or Decimal(0)) * price
    if ticket.fractional and cost < _MIN_NOTIONAL:
        raise wire.forbidden_order("cost basis must be >= minimal amount of order 1", cost_basis=str(cost))


def check_wash_trade(order: Order, others: Iterable[Order]) -> None:
    """Refuse an order that could trade with an open order of the other side."""
    for other in others:
        if other.symbol != order.symbol or other.side == order.side or other.is_held:
            continue
        limits = {o.side: o.limit_price for o in (order, other)}
        buy = limits["buy"]
        sell = limits["sell"]
        if buy is not None and sell is not None and buy < sell:
            continue
        raise wire.forbidden_order(
            "potential wash trade detected. use complex orders",
            existing_order_id=other.id,
            reject_reason=f"opposite side {other.type} order exists",
        )


def check_available_shares(order: Order, shares_held: Decimal, available: Decimal) -> None:
    """Refuse a sale from a long position if other open orders leave too few shares available."""
    if order.remaining > available:
        requested_quantity = wire.decimal_text(order.remaining)
        left = wire.decimal_text(available)
        raise wire.forbidden_order(
            f"insufficient qty available for order (requested: {requested_quantity}, available: {left})",
            available=left,
            existing_qty=wire.decimal_text(shares_held),
            held_for_orders=wire.decimal_text(shares_held - available),
            symbol=order.symbol,
        )


def check_short_sale(order: Order, *, allowed: bool) -> None:
    """Refuse a short sale if the account may not short, or if it is not in whole shares."""
    if not allowed:
        raise wire.forbidden_order("account is not allowed to short")
    if order.notional is not None or order.remaining % 1 != 0:
        raise wire.unprocessable("fractional orders cannot be sold short")


def check_buying_power(order: Order, shares_held: Decimal, buying_power: Decimal) -> None:
    """Refuse an order whose newly opened exposure costs more than the buying power."""
    cost = opening_quantity(order, shares_held) * order.reserve if order.notional is None else order.notional
    if cost > buying_power:
        raise wire.forbidden_order(
            "insufficient buying power",
            buying_power=wire.decimal_text(buying_power),
            cost_basis=wire.decimal_text(cost),
        )


def check_day_trade(
    order: Order, activities: Iterable[Mapping[str, Any]], sessions: Sessions, moment: float, equity: Decimal
) -> None:
    """Refuse the fourth day trade in five sessions of a small account, by the pattern day trading rule until 2026."""
    if order.side == "buy" or equity >= _DAY_TRADER_MIN_EQUITY:
        return
    purchase = (new_york(moment).date(), "buy", order.symbol)
    bought_today = any((day, fill["side"], fill["symbol"]) == purchase for day, fill in _dated_fills(activities))
    if bought_today and count_day_trades(activities, sessions, moment) >= _MAX_DAY_TRADES:
        raise wire.ApiError(403, wire.PATTERN_DAY_TRADING, "trade denied due to pattern day trading protection")


def count_day_trades(activities: Iterable[Mapping[str, Any]], sessions: Sessions, moment: float) -> int:
    """Number of day trades in the last five sessions: completed sales of symbols bought earlier on the same day."""
    recent_sessions = sessions.between(sessions.all[0].date, new_york(moment).date())[-_DAY_TRADE_SESSIONS:]
    recent_dates = {session.date for session in recent_sessions}
    purchases = set()
    count = 0
    for day, fill in _dated_fills(activities):
        if fill["side"] == "buy":
            purchases.add((day, fill["symbol"]))
        elif fill["type"] == "fill" and day in recent_dates and (day, fill["symbol"]) in purchases:
            count += 1
    return count


def _dated_fills(activities: Iterable[Mapping[str, Any]]) -> Iterator[tuple[date, Mapping[str, Any]]]:
    """(date in New York, activity) of each fill."""
    for activity in activities:
        if activity["activity_type"] == "FILL":
            yield new_york(datetime.fromisoformat(activity["transaction_time"]).timestamp()).date(), activity


# ---- orders with exits ---------------------------------------------------------------------------------------------
# The legs of a bracket or one-triggers-other order are `held` until the entry is filled. Then the take-profit becomes
# `new`, while the stop-loss stays `held` until its price is reached. The order that ends first cancels the others.


@dataclass(frozen=True)
class Exits:
    """Prices of the legs in dollars, None without the leg. stop_limit: limit price of a stop-limit order."""

    take_profit: Decimal | None
    stop_loss: Decimal | None
    stop_limit: Decimal | None


def parse_exits(body: Mapping[str, Any], order_class: str) -> Exits:
    """The legs in a request body. Raises ApiError for a class without its legs, or with a leg that it does not have."""
    legs = [name for name in _PRICES_OF_LEG if body.get(name)]
    prices = {full_name: price for name in legs for full_name, price in _parse_leg(body[name], name).items()}
    if order_class == "simple" and legs:
        raise wire.invalid_parameter(f"simple orders require no {legs[0]}")
    if order_class in ("bracket", "oco"):
        for name, keys in _PRICES_OF_LEG.items():
            if name not in legs:
                raise wire.invalid_parameter(f"{order_class} orders require {name}.{keys[0]}")
    if order_class == "oto" and len(legs) != 1:
        raise wire.invalid_parameter("oto orders require take_profit or stop_loss, and not both")
    return Exits(
        take_profit=prices.get("take_profit.limit_price"),
        stop_loss=prices.get("stop_loss.stop_price"),
        stop_limit=prices.get("stop_loss.limit_price"),
    )


def _parse_leg(leg: Any, name: str) -> dict[str, Decimal]:
    """Prices of a leg by their full names such as "stop_loss.limit_price"."""
    if not isinstance(leg, Mapping):
        raise wire.invalid_parameter(f"{name} must be an object")
    prices = {}
    for key in _PRICES_OF_LEG[name]:
        full_name = f"{name}.{key}"
        price = parse_decimal({full_name: leg.get(key)}, full_name)
        if price is not None:
            check_price_increment(full_name, price)
            prices[full_name] = price
    required_price = f"{name}.{_PRICES_OF_LEG[name][0]}"
    if required_price not in prices:
        raise wire.invalid_parameter(f"{required_price} is required")
    return prices


def check_exits(ticket: OrderTicket, exits: Exits, base_price: Decimal) -> None:
    """Refuse terms that orders with exits may not have. base_price: dollars, the limit or the current price."""
    if ticket.order_class == "simple":
        return
    if ticket.time_in_force not in ("day", "gtc"):
        raise wire.invalid_parameter("complex orders only support day or gtc time in force")
    if ticket.extended_hours:
        raise wire.invalid_parameter("extended hours order must be simple orders")
    if ticket.fractional:
        raise wire.unprocessable("fractional orders must be simple orders")
    is_oco = ticket.order_class == "oco"
    if is_oco and ticket.type != "limit":
        raise wire.invalid_parameter("oco orders must be limit orders")
    exits_sell = (ticket.side == "sell") == is_oco
    profit = exits.take_profit
    stop = exits.stop_loss
    if profit is not None and stop is not None and (profit <= stop if exits_sell else profit >= stop):
        raise wire.invalid_parameter(
            f"take_profit.limit_price must be {'>' if exits_sell else '<'} stop_loss.stop_price"
        )
    if not is_oco:
        _check_distance("take_profit.limit_price", profit, base_price, is_above=exits_sell)
        _check_distance("stop_loss.stop_price", stop, base_price, is_above=not exits_sell)


def _check_distance(name: str, price: Decimal | None, base_price: Decimal, *, is_above: bool) -> None:
    """Refuse an exit less than a cent above (or below) the base price."""
    if price is None or (price >= base_price + _TICK if is_above else price <= base_price - _TICK):
        return
    rule = ">= base_price + 0.01" if is_above else "<= base_price - 0.01"
    raise wire.unprocessable(f"{name} must be {rule}", base_price=str(base_price))


def leg_tickets(parent: Order, exits: Exits) -> list[OrderTicket]:
    """Tickets of the legs of an order. The take-profit of a one-cancels-other order is the parent itself."""
    opposite_side = "sell" if parent.side == "buy" else "buy"
    side = parent.side if parent.order_class == "oco" else opposite_side
    common: dict[str, Any] = {
        "client_order_id": "", "symbol": parent.symbol, "side": side, "time_in_force": parent.time_in_force,
        "qty": parent.qty, "notional": None, "extended_hours": False, "order_class": parent.order_class,
        "position_intent": f"{side}_to_close",
    }  # fmt: skip
    tickets = []
    if exits.take_profit is not None and parent.order_class != "oco":
        tickets.append(OrderTicket(**common, type="limit", limit_price=exits.take_profit, stop_price=None))
    if exits.stop_loss is not None:
        order_type = "stop" if exits.stop_limit is None else "stop_limit"
        tickets.append(OrderTicket(**common, type=order_type, limit_price=exits.stop_limit, stop_price=exits.stop_loss))
    return tickets
