"""Order matching: when an order fills, at what price and in how many parts.

Pure functions of an order and the price path of a session, a list of (UTC epoch seconds, raw price) corners.
"""

from __future__ import annotations

import itertools
from decimal import Decimal
from zlib import crc32

import numpy as np

from finrl_pod.fake_alpaca.orders import Order
from finrl_pod.fake_alpaca.settings import MarketConditions
from finrl_pod.fake_alpaca.wire_format import floor_shares, price_decimal
from finrl_pod.random import key

PricePath = list[tuple[float, float]]

_MIN_FIRST_PART = 0.1  # the first of two parts is 10% to 90% of an order
_FIRST_PART_RANGE = 0.8


def fills_in_auction(order: Order, path: PricePath) -> bool:
    """Whether the limit of an order for the opening or closing auction allows it to fill there."""
    price = auction_price(order, path)
    if order.limit_price is None:
        return True
    return price <= order.limit_price if order.side == "buy" else price >= order.limit_price


def auction_price(order: Order, path: PricePath) -> Decimal:
    """The opening price for opg, the closing price for cls."""
    return price_decimal(path[0 if order.time_in_force == "opg" else -1][1])


def first_execution(order: Order, path: PricePath, start: float) -> float | None:
    """First time from `start` on at which stop and limit allow the order to trade; None if there is none."""
    begin: float | None = start
    if order.stop_price is not None:
        begin = first_crossing(path, start, float(order.stop_price), falling=order.side == "sell")
    if begin is not None and order.limit_price is not None:
        begin = first_crossing(path, begin, float(order.limit_price), falling=order.side == "buy")
    return begin


def first_crossing(path: PricePath, start: float, level: float, *, falling: bool) -> float | None:
    """First time from `start` on at which the path is at or below (falling) or at or above a level; None if never."""
    for (t0, p0), (t1, p1) in itertools.pairwise(path):
        if t1 < start:
            continue
        if t0 < start:
            p0 = p0 + (p1 - p0) * (start - t0) / (t1 - t0)
            t0 = start
        if (p0 <= level) if falling else (p0 >= level):
            return t0
        if (p1 <= level) if falling else (p1 >= level):
            return t0 + (t1 - t0) * (level - p0) / (p1 - p0)
    return None


def fill_price(order: Order, path: PricePath, moment: float) -> Decimal:
    """Fill price: auction price for opg and cls orders, otherwise the price on the path, or a better limit."""
    if order.time_in_force in ("opg", "cls"):
        return auction_price(order, path)
    price = price_decimal(float(np.interp(moment, [t for t, _ in path], [p for _, p in path])))
    if order.limit_price is None:
        return price
    return min(price, order.limit_price) if order.side == "buy" else max(price, order.limit_price)


def first_part(order: Order, left: Decimal, conditions: MarketConditions, seed: int) -> tuple[Decimal, float]:
    """(shares that fill first, simulated seconds until the rest fills); the second is 0 if the order fills at once.

    left: shares still to fill. The draw depends only on the seed and the client order id.
    """
    if order.filled or order.order_class != "simple":  # two exits must not fill in part
        return left, 0.0
    rng = np.random.default_rng(key(seed, crc32(order.client_order_id.encode()), "partial fills"))
    partial, share, gap = rng.random(3)
    if partial >= conditions.partial:
        return left, 0.0
    first_quantity = left * Decimal(repr(_MIN_FIRST_PART + _FIRST_PART_RANGE * float(share)))
    is_whole = order.qty is not None and order.qty % 1 == 0
    quantity = first_quantity.to_integral_value() if is_whole else floor_shares(first_quantity)
    return (quantity, float(gap) * conditions.partial_gap) if 0 < quantity < left else (left, 0.0)
