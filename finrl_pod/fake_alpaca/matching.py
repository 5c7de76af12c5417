"""When an order meets the market, at what price, and in how many parts: functions of the order and a session's path."""

from __future__ import annotations

from decimal import Decimal
from zlib import crc32

import numpy as np

from finrl_pod.fake_alpaca.conditions import Conditions
from finrl_pod.fake_alpaca.orders import Order, amount, shares
from finrl_pod.fake_alpaca.prices import first_crossing
from finrl_pod.random import key

Path = list[tuple[float, float]]

_SMALLEST_PART, _PARTS = 0.1, 0.8  # a first part is 10% to 90% of an order


def auction_fills(order: Order, path: Path) -> bool:
    """Whether an order for the opening or the closing auction takes part in it."""
    price = auction_price(order, path)
    if order.limit_price is None:
        return True
    return price <= order.limit_price if order.side == "buy" else price >= order.limit_price


def auction_price(order: Order, path: Path) -> Decimal:
    """The open for opg, the close for cls."""
    return amount(path[0 if order.time_in_force == "opg" else -1][1])


def first_execution(order: Order, path: Path, start: float) -> float | None:
    """The first moment from `start` at which the order can trade, its stop and its limit obeyed; None without one."""
    begin: float | None = start
    if order.stop_price is not None:
        begin = first_crossing(path, start, float(order.stop_price), falling=order.side == "sell")
    if begin is not None and order.limit_price is not None:
        begin = first_crossing(path, begin, float(order.limit_price), falling=order.side == "buy")
    return begin


def fill_price(order: Order, path: Path, moment: float) -> Decimal:
    """The auction's price, else the path's at the moment, or the limit where that is better for the order."""
    if order.time_in_force in ("opg", "cls"):
        return auction_price(order, path)
    price = amount(float(np.interp(moment, [t for t, _ in path], [p for _, p in path])))
    if order.limit_price is None:
        return price
    return min(price, order.limit_price) if order.side == "buy" else max(price, order.limit_price)


def first_part(order: Order, left: Decimal, conditions: Conditions, seed: int) -> tuple[Decimal, float]:
    """(shares of the first fill, seconds until the second): drawn for this client_order_id alone."""
    if order.filled:
        return left, 0.0
    rng = np.random.default_rng(key(seed, crc32(order.client_order_id.encode()), "partial fills"))
    partial, share, gap = rng.random(3)
    if partial >= conditions.partial:
        return left, 0.0
    wanted = left * Decimal(repr(_SMALLEST_PART + _PARTS * float(share)))
    whole = order.qty is not None and order.qty % 1 == 0
    quantity = wanted.to_integral_value() if whole else shares(wanted)
    return (quantity, float(gap) * conditions.partial_gap) if 0 < quantity < left else (left, 0.0)
