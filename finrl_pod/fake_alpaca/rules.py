"""Which orders are taken: Alpaca's checks of what a client sends, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from finrl_pod.fake_alpaca.orders import Refusal, Ticket
from finrl_pod.fake_alpaca.sessions import Session
from finrl_pod.fake_alpaca.settings import Settings

FORBIDDEN, PARAMETER, RULE = 40310000, 40010001, 42210000

_TYPES = ("market", "limit", "stop", "stop_limit")
_TIMES = ("day", "gtc", "opg", "cls", "ioc", "fok")
_SMALLEST = Decimal(1)  # dollars
_SHARE_DECIMALS, _CENTS, _BELOW_A_DOLLAR = 9, 2, 4
_CLOSE_CUTOFF = 600.0  # seconds before the close
_NIGHT = 19


def read(body: Any, settings: Settings) -> Ticket:
    """Raises Refusal for the first parameter that is missing or out of form."""
    if not isinstance(body, Mapping):
        raise Refusal(400, 40010000, "request body format is invalid")
    symbol = body.get("symbol")
    if not isinstance(symbol, str) or not symbol:
        raise Refusal(422, PARAMETER, "symbol is required")
    order_class = body.get("order_class") or "simple"
    if order_class != "simple" or body.get("legs"):
        raise Refusal(422, PARAMETER, f"order class {order_class} is not served by this stand-in")
    side = _one_of(body, "side", ("buy", "sell"))
    kind = _one_of(body, "type", _TYPES)
    time_in_force = _one_of(body, "time_in_force", _TIMES)
    qty, notional = number(body, "qty"), number(body, "notional")
    if qty is None and notional is None:
        raise Refusal(422, PARAMETER, "qty or notional is required")
    if qty is not None and notional is not None:
        raise Refusal(settings.both_status, PARAMETER, "only one of qty or notional is accepted")
    for name, value in (("qty", qty), ("notional", notional)):
        if value is not None and value <= 0:
            raise Refusal(422, PARAMETER, f"{name} must be > 0")
    if qty is not None and _decimals(qty) > _SHARE_DECIMALS:
        raise Refusal(422, PARAMETER, f"qty increment is limited to {_SHARE_DECIMALS} decimal points")
    if notional is not None and _decimals(notional) > _CENTS:
        raise Refusal(422, PARAMETER, "notional value must be limited to 2 decimal places")
    limit, stop = number(body, "limit_price"), number(body, "stop_price")
    client_order_id = str(body.get("client_order_id") or "")
    if len(client_order_id) > settings.longest_id:
        raise Refusal(422, PARAMETER, f"client_order_id must be no more than {settings.longest_id} characters")
    ticket = Ticket(
        client_order_id=client_order_id,
        symbol=symbol,
        side=side,
        type=kind,
        time_in_force=time_in_force,
        qty=qty,
        notional=notional,
        limit_price=limit,
        stop_price=stop,
        extended_hours=body.get("extended_hours") is True,
        position_intent=body.get("position_intent"),
    )
    _check_prices(ticket)
    return ticket


def number(body: Mapping[str, Any], name: str) -> Decimal | None:
    """A number that may be text; None where it is missing. Raises Refusal when it is neither."""
    value = body.get(name)
    if value is None:
        return None
    try:
        result = Decimal(str(value)) if not isinstance(value, bool) else Decimal("NaN")
    except InvalidOperation:
        result = Decimal("NaN")
    if not result.is_finite():
        raise Refusal(422, PARAMETER, f"{name} is not a number")
    return result


def check_increment(name: str, price: Decimal) -> None:
    """Prices of a dollar and more have two decimals, below four."""
    if price <= 0:
        raise Refusal(422, PARAMETER, f"{name} must be > 0")
    if _decimals(price) > (_CENTS if price >= 1 else _BELOW_A_DOLLAR):
        raise Refusal(
            422, RULE, f"invalid {name} {price}. sub-penny increment does not fulfill minimum pricing criteria"
        )


def _check_prices(ticket: Ticket) -> None:
    needed = {"limit": ("limit_price",), "stop": ("stop_price",), "stop_limit": ("limit_price", "stop_price")}
    for name in ("limit_price", "stop_price"):
        price = getattr(ticket, name)
        wanted = name in needed.get(ticket.type, ())
        if wanted and price is None:
            raise Refusal(422, PARAMETER, f"{ticket.type} orders require {name.replace('_', ' ')}")
        if not wanted and price is not None:
            raise Refusal(422, PARAMETER, f"{ticket.type} orders require no {name.replace('_', ' ')}")
        if price is not None:
            check_increment(name, price)
    if ticket.fractional and ticket.time_in_force != "day":
        raise Refusal(422, RULE, "fractional orders must be DAY orders")
    if ticket.time_in_force in ("opg", "cls") and ticket.type not in ("market", "limit"):
        raise Refusal(422, RULE, f"{ticket.time_in_force} orders must be market or limit orders")
    if ticket.extended_hours and (ticket.type != "limit" or ticket.time_in_force not in ("day", "gtc")):
        raise Refusal(422, RULE, "extended hours order must be DAY or GTC limit orders")


def check_hours(time_in_force: str, moment: float, today: Session | None) -> None:
    """opg is refused from 9:28 to 19:00 in New York, cls from ten minutes before the close; on sessions alone."""
    if today is None or moment >= today.at(_NIGHT):
        return
    if time_in_force == "opg" and moment >= today.at(9, 28):
        raise Refusal(422, RULE, "opg orders are not accepted between 9:28am and 7:00pm ET")
    if time_in_force == "cls" and moment >= today.close - _CLOSE_CUTOFF:
        raise Refusal(422, RULE, "cls orders are not accepted between 10 minutes before the close and 7:00pm ET")


def check_smallest(ticket: Ticket, price: Decimal) -> None:
    """A fractional order is worth a dollar or more."""
    cost = ticket.notional if ticket.notional is not None else (ticket.qty or Decimal(0)) * price
    if ticket.fractional and cost < _SMALLEST:
        raise Refusal(403, FORBIDDEN, "cost basis must be >= minimal amount of order 1", cost_basis=str(cost))


def _one_of(body: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    value = body.get(name)
    if value is None:
        raise Refusal(422, PARAMETER, f"{name} is required")
    if value not in known:
        raise Refusal(422, PARAMETER, f"invalid {name}: {value}")
    return str(value)


def _decimals(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)
