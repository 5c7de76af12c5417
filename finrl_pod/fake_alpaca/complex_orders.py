"""Orders with exits: bracket (entry, take-profit and stop-loss), one-cancels-other and one-triggers-other.

The legs of a bracket or one-triggers-other order are `held` until the entry is filled. Then the take-profit becomes
`new`, while the stop-loss stays `held` and is watched. The order that fills or ends first cancels the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from finrl_pod.fake_alpaca.orders import Order, OrderTicket
from finrl_pod.fake_alpaca.wire_format import INVALID_PARAMETER, UNPROCESSABLE, ApiError, parse_number

ORDER_CLASSES = ("simple", "bracket", "oco", "oto")
_EXITS = {"take_profit": ("limit_price",), "stop_loss": ("stop_price", "limit_price")}
_TICK = Decimal("0.01")


@dataclasses.dataclass(frozen=True)
class Exits:
    """Prices of the legs in dollars, None without the leg. stop_limit: limit of a stop-limit order."""

    take_profit: Decimal | None = None
    stop_loss: Decimal | None = None
    stop_limit: Decimal | None = None


def parse_exits(body: Mapping[str, Any], order_class: str) -> Exits:
    """The legs in a request body. Raises ApiError for a class without its legs, or with one that it does not have."""
    prices = {name: _parse_leg(body.get(name), name, required) for name, required in _EXITS.items() if body.get(name)}
    exits = Exits(
        prices.get("take_profit", {}).get("limit_price"),
        prices.get("stop_loss", {}).get("stop_price"),
        prices.get("stop_loss", {}).get("limit_price"),
    )
    if order_class == "simple":
        if prices:
            raise _invalid(f"simple orders require no {next(iter(prices))}")
        return exits
    if order_class in ("bracket", "oco"):
        for name in _EXITS:
            if name not in prices:
                raise _invalid(f"{order_class} orders require {name}.{_EXITS[name][0]}")
    elif len(prices) != 1:
        raise _invalid("oto orders require take_profit or stop_loss, and not both")
    return exits


def check_complex(ticket: OrderTicket, exits: Exits, base_price: Decimal) -> None:
    """Refuse terms that orders with exits may not have. base_price: dollars, the limit or the current price."""
    if ticket.order_class == "simple":
        return
    if ticket.time_in_force not in ("day", "gtc"):
        raise _invalid("complex orders only support day or gtc time in force")
    if ticket.extended_hours:
        raise _invalid("extended hours order must be simple orders")
    if ticket.fractional:
        raise ApiError(422, UNPROCESSABLE, "fractional orders must be simple orders")
    if ticket.order_class == "oco" and ticket.type != "limit":
        raise _invalid("oco orders must be limit orders")
    exit_sign = 1 if ticket.order_class == "oco" else -1
    selling = (ticket.side == "sell") == (exit_sign == 1)
    profit = exits.take_profit
    stop = exits.stop_loss
    if profit is not None and stop is not None and (profit <= stop if selling else profit >= stop):
        order = ">" if selling else "<"
        raise _invalid(f"take_profit.limit_price must be {order} stop_loss.stop_price")
    if ticket.order_class == "oco":
        return
    for name, price, above in (
        ("take_profit.limit_price", profit, selling),
        ("stop_loss.stop_price", stop, not selling),
    ):
        edge = base_price + _TICK if above else base_price - _TICK
        if price is not None and (price < edge if above else price > edge):
            sign = (">=", "+") if above else ("<=", "-")
            raise ApiError(
                422, UNPROCESSABLE, f"{name} must be {sign[0]} base_price {sign[1]} 0.01", base_price=str(base_price)
            )


def leg_tickets(parent: Order, exits: Exits) -> list[OrderTicket]:
    """The orders that a parent brings along; the take-profit of a one-cancels-other order is the parent itself."""
    side = parent.side if parent.order_class == "oco" else ("sell" if parent.side == "buy" else "buy")
    common: dict[str, Any] = {
        "client_order_id": "", "symbol": parent.symbol, "side": side, "time_in_force": parent.time_in_force,
        "qty": parent.qty, "notional": None, "extended_hours": False, "order_class": parent.order_class,
        "position_intent": f"{side}_to_close",
    }  # fmt: skip
    found = []
    if exits.take_profit is not None and parent.order_class != "oco":
        found.append(OrderTicket(**common, type="limit", limit_price=exits.take_profit, stop_price=None))
    if exits.stop_loss is not None:
        kind = "stop" if exits.stop_limit is None else "stop_limit"
        found.append(OrderTicket(**common, type=kind, limit_price=exits.stop_limit, stop_price=exits.stop_loss))
    return found


def _parse_leg(leg: Any, name: str, names: tuple[str, ...]) -> dict[str, Decimal]:
    if not isinstance(leg, Mapping):
        raise _invalid(f"{name} must be an object")
    found = {}
    for key in names:
        if leg.get(key) is None:
            continue
        try:
            price = parse_number(leg[key])
        except ValueError:
            raise _invalid(f"{name}.{key} is not a number") from None
        if price <= 0:
            raise _invalid(f"{name}.{key} must be > 0")
        exponent = price.normalize().as_tuple().exponent
        if isinstance(exponent, int) and -exponent > (2 if price >= 1 else 4):
            raise ApiError(
                422, UNPROCESSABLE,
                f"invalid {name}.{key} {price}. sub-penny increment does not fulfill minimum pricing criteria",
            )  # fmt: skip
        found[key] = price
    if names[0] not in found:
        raise _invalid(f"{name}.{names[0]} is required")
    return found


def _invalid(message: str) -> ApiError:
    return ApiError(422, INVALID_PARAMETER, message)
