"""Orders with exits: bracket (entry, take-profit and stop-loss), one-cancels-other and one-triggers-other.

The legs of a bracket or one-triggers-other order are `held` until the entry is filled. Then the take-profit becomes
`new`, while the stop-loss stays `held` until its price is reached. The order that ends first cancels the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from finrl_pod.fake_alpaca.order_validation import check_price_increment, parse_decimal
from finrl_pod.fake_alpaca.orders import Order, OrderTicket
from finrl_pod.fake_alpaca.wire_format import invalid_parameter, unprocessable

_PRICES_OF_LEG = {"take_profit": ("limit_price",), "stop_loss": ("stop_price", "limit_price")}  # the first is required
_TICK = Decimal("0.01")


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
        raise invalid_parameter(f"simple orders require no {legs[0]}")
    if order_class in ("bracket", "oco"):
        for name, keys in _PRICES_OF_LEG.items():
            if name not in legs:
                raise invalid_parameter(f"{order_class} orders require {name}.{keys[0]}")
    if order_class == "oto" and len(legs) != 1:
        raise invalid_parameter("oto orders require take_profit or stop_loss, and not both")
    return Exits(
        take_profit=prices.get("take_profit.limit_price"),
        stop_loss=prices.get("stop_loss.stop_price"),
        stop_limit=prices.get("stop_loss.limit_price"),
    )


def _parse_leg(leg: Any, name: str) -> dict[str, Decimal]:
    """Prices of a leg by their full names such as "stop_loss.limit_price"."""
    if not isinstance(leg, Mapping):
        raise invalid_parameter(f"{name} must be an object")
    prices = {}
    for key in _PRICES_OF_LEG[name]:
        full_name = f"{name}.{key}"
        price = parse_decimal({full_name: leg.get(key)}, full_name)
        if price is not None:
            check_price_increment(full_name, price)
            prices[full_name] = price
    required_price = f"{name}.{_PRICES_OF_LEG[name][0]}"
    if required_price not in prices:
        raise invalid_parameter(f"{required_price} is required")
    return prices


def check_exits(ticket: OrderTicket, exits: Exits, base_price: Decimal) -> None:
    """Refuse terms that orders with exits may not have. base_price: dollars, the limit or the current price."""
    if ticket.order_class == "simple":
        return
    if ticket.time_in_force not in ("day", "gtc"):
        raise invalid_parameter("complex orders only support day or gtc time in force")
    if ticket.extended_hours:
        raise invalid_parameter("extended hours order must be simple orders")
    if ticket.fractional:
        raise unprocessable("fractional orders must be simple orders")
    is_oco = ticket.order_class == "oco"
    if is_oco and ticket.type != "limit":
        raise invalid_parameter("oco orders must be limit orders")
    exits_sell = (ticket.side == "sell") == is_oco
    profit = exits.take_profit
    stop = exits.stop_loss
    if profit is not None and stop is not None and (profit <= stop if exits_sell else profit >= stop):
        raise invalid_parameter(f"take_profit.limit_price must be {'>' if exits_sell else '<'} stop_loss.stop_price")
    if not is_oco:
        _check_distance("take_profit.limit_price", profit, base_price, is_above=exits_sell)
        _check_distance("stop_loss.stop_price", stop, base_price, is_above=not exits_sell)


def _check_distance(name: str, price: Decimal | None, base_price: Decimal, *, is_above: bool) -> None:
    """Refuse an exit less than a cent above (or below) the base price."""
    if price is None or (price >= base_price + _TICK if is_above else price <= base_price - _TICK):
        return
    rule = ">= base_price + 0.01" if is_above else "<= base_price - 0.01"
    raise unprocessable(f"{name} must be {rule}", base_price=str(base_price))


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
