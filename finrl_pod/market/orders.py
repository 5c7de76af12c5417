"""Sizing of broker orders from target weights, before the fill prices are known.

Shared by the paper-trading daemon and backtests with execution="paper".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Decimal

WHOLE = Decimal(1)
FRACTION = Decimal("1e-9")  # brokers take nine decimals
ZERO = Decimal(0)
TOLERANCE = 1e-9  # rounding error of weights
MIN_WEIGHT = sys.float_info.min  # smaller positive numbers would overflow the factor by which weights grow


@dataclass(frozen=True)
class OrderLimits:
    """Limits of orders as shares of equity.

    max_position: a position. max_gross: all positions. max_order: a purchase. max_turnover: value bought and sold by
    one decision. What max_position cuts from a weight goes to the other positive weights.
    """

    max_position: Decimal
    max_gross: Decimal
    max_order: Decimal
    max_turnover: Decimal


@dataclass(frozen=True)
class SizingRules:
    """Rules of order sizing.

    cash_buffer: fraction of equity kept in cash at decision prices. fractional: nine decimals, else whole shares.
    min_value: smaller orders, in currency, are dropped. cost_rate: trading cost as a fraction of traded value.
    collar: distance of limit prices from the decision price, as a fraction; 0: market orders. limits: bounds of
    weights and purchases, None without any. target_sessions: sessions after the first one of a decision in which shares
    that are still missing are ordered again.
    """

    cash_buffer: Decimal = Decimal("0.02")
    fractional: bool = False
    min_value: Decimal = WHOLE
    cost_rate: Decimal = ZERO
    collar: Decimal = ZERO
    limits: OrderLimits | None = None
    target_sessions: int = 5


@dataclass(frozen=True)
class PositionTarget:
    """Position in shares that a decision aims at, and its weight of equity less the cash buffer."""

    shares: Decimal
    weight: float


def limited_weights(weights: Sequence[float], rules: SizingRules) -> list[float]:
    """Target weights [N], not negative, cut to the limits of a position and of all positions.

    Weights are fractions of equity less the cash buffer, the limits fractions of equity. Weights within the limits are
    returned unchanged.
    """
    limits = rules.limits
    if limits is None:
        return list(weights)
    largest, total = (float(x / (1 - rules.cash_buffer)) for x in (limits.max_position, limits.max_gross))
    cut = list(weights)
    if max(cut, default=0.0) > largest * (1 + TOLERANCE):
        cut = [min(weight, largest) for weight in weights]
        excess = sum(weights) - sum(cut)
        while excess > TOLERANCE and (room := [i for i, weight in enumerate(cut) if MIN_WEIGHT <= weight < largest]):
            factor = 1 + excess / sum(cut[i] for i in room)
            excess = sum(max(cut[i] * factor - largest, 0.0) for i in room)
            for i in room:
                cut[i] = min(cut[i] * factor, largest)
    return [weight * total / sum(cut) for weight in cut] if sum(cut) > total * (1 + TOLERANCE) else cut


def target_positions(
    weights: Sequence[float], cash: Decimal, shares: Sequence[Decimal], prices: Sequence[Decimal],
    fixed_flags: Sequence[bool], rules: SizingRules,
) -> list[PositionTarget | None]:  # fmt: skip
    """Target positions [N] at `weights` of equity less the cash buffer, cut to the limits (`limited_weights`).

    cash: currency; shares, prices: [N], prices above 0. fixed_flags: [N], positions that cannot be traded now: None.
    Shares are rounded down.
    """
    investable = _investable(cash, shares, prices, rules)
    step = _step(rules)
    return [
        None if is_fixed else PositionTarget(_shares_of(weight, investable, price, step), weight)
        for weight, price, is_fixed in zip(limited_weights(weights, rules), prices, fixed_flags, strict=True)
    ]


def missing_shares(
    targets: Sequence[PositionTarget | None], cash: Decimal, shares: Sequence[Decimal], prices: Sequence[Decimal],
    rules: SizingRules,
) -> list[Decimal]:  # fmt: skip
    """Signed shares [N] that the holdings lack to reach their targets; 0 without a target.

    Where prices have risen since the decision, no more is bought than the target weight of current equity.
    """
    investable = _investable(cash, shares, prices, rules)
    step = _step(rules)
    quantities = []
    for target, held_shares, price in zip(targets, shares, prices, strict=True):
        if target is None:
            quantities.append(ZERO)
            continue
        change = (target.shares - held_shares).quantize(step, ROUND_DOWN)
        if change > 0:
            change = max(min(change, _shares_of(target.weight, investable, price, step) - held_shares), ZERO)
            change = change.quantize(step, ROUND_DOWN)
        if target.shares == 0 and held_shares > 0:
            # Close the whole position: whole shares in the auction, then a fraction left by a split.
            change = -(held_shares.quantize(step, ROUND_DOWN) or held_shares)
        quantities.append(change if abs(change) * price >= rules.min_value else ZERO)
    return quantities


def distance_to_target(missing: Sequence[Decimal], equity: Decimal, prices: Sequence[Decimal]) -> Decimal:
    """Value of the missing shares [N], bought or sold, as a share of equity."""
    if equity <= 0:
        return ZERO
    return sum((abs(q) * p for q, p in zip(missing, prices, strict=True)), ZERO) / equity


def orders_within_limits(
    missing: Sequence[Decimal], cash: Decimal, shares: Sequence[Decimal], prices: Sequence[Decimal],
    fixed_flags: Sequence[bool], rules: SizingRules,
) -> list[Decimal]:  # fmt: skip
    """Signed order quantities [N] for missing shares: single purchases cut to the limit, all of them to the funds.

    If purchases and fees exceed cash plus proceeds less the buffer, or orders the turnover limit, purchases are scaled
    down by one factor.
    """
    equity = max(cash + sum((s * p for s, p in zip(shares, prices, strict=True)), ZERO), ZERO)
    step = _step(rules)
    largest = None if rules.limits is None else rules.limits.max_order * equity
    quantities = []
    for change, price, is_fixed in zip(missing, prices, fixed_flags, strict=True):
        quantity = ZERO if is_fixed else change
        if largest is not None and quantity * price > largest:
            quantity = (largest / price).quantize(step, ROUND_DOWN)
        quantities.append(quantity if abs(quantity) * price >= rules.min_value else ZERO)
    sales = sum((-q * p for q, p in zip(quantities, prices, strict=True) if q < 0), ZERO)
    buys = sum((q * p for q, p in zip(quantities, prices, strict=True) if q > 0), ZERO)
    funds = cash + sales * (1 - rules.cost_rate) - equity * rules.cash_buffer
    affordable = funds / (1 + rules.cost_rate)
    if rules.limits is not None:
        affordable = min(affordable, rules.limits.max_turnover * equity - sales)
    if buys and buys > affordable:
        factor = max(affordable, ZERO) / buys
        quantities = [(q * factor).quantize(step, ROUND_DOWN) if q > 0 else q for q in quantities]
        quantities = [q if abs(q) * p >= rules.min_value else ZERO for q, p in zip(quantities, prices, strict=True)]
    return quantities


def _investable(cash: Decimal, shares: Sequence[Decimal], prices: Sequence[Decimal], rules: SizingRules) -> Decimal:
    equity = cash + sum((s * p for s, p in zip(shares, prices, strict=True)), ZERO)
    return max(equity, ZERO) * (1 - rules.cash_buffer)


def _step(rules: SizingRules) -> Decimal:
    return FRACTION if rules.fractional else WHOLE


def _shares_of(weight: float, investable: Decimal, price: Decimal, step: Decimal) -> Decimal:
    return (Decimal(repr(float(weight))) * investable / price).quantize(step, ROUND_DOWN)


def limit_price(price: Decimal, quantity: Decimal, collar: Decimal) -> Decimal:
    """Limit price of an order of that signed quantity: the edge of the collar, rounded to the tick of the broker.

    Prices of 1 and above have two decimals, lower ones four.
    """
    edge = price * (1 + collar if quantity > 0 else 1 - collar)
    step = Decimal("0.01") if edge >= 1 else Decimal("0.0001")
    return max(edge.quantize(step, ROUND_HALF_EVEN), step)


def fill_on_path(
    first: float, last: float, session_share: float, limit: Decimal | None, *, buys: bool
) -> tuple[float, float] | None:
    """Part of a session (0 to 1, from `session_share` on) at which an order fills, and the price; None if it does not.

    The price moves on a straight line from `first` at the open to `last` at the close, the mean of a Brownian bridge
    between them. Prices are rounded to 6 decimals; a line that reaches the limit later fills at the limit.
    """
    price = round(first + (last - first) * session_share, 6)
    if limit is None or (Decimal(repr(price)) <= limit if buys else Decimal(repr(price)) >= limit):
        return session_share, price
    if first == last or not session_share <= (crossing := (float(limit) - first) / (last - first)) <= 1:
        return None
    return crossing, float(limit)
