"""Sizing of broker orders from target weights, before the fill prices are known.

Shared by the paper-trading daemon and backtests with execution="paper".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Decimal

WHOLE = Decimal(1)
FRACTION = Decimal("1e-9")  # brokers take nine decimals
ZERO = Decimal(0)
TOLERANCE = 1e-9  # rounding error of weights


@dataclass(frozen=True)
class OrderLimits:
    """Limits of orders as shares of equity.

    max_position: a position. max_gross: all positions. max_order: a purchase. max_turnover: value bought and sold by
    one decision. spread: what max_position cuts from a weight goes to the other positive weights, else stays in cash.
    """

    max_position: Decimal
    max_gross: Decimal
    max_order: Decimal
    max_turnover: Decimal
    spread: bool = True


@dataclass(frozen=True)
class SizingRules:
    """Rules of order sizing.

    cash_buffer: fraction of equity kept in cash at the decision's prices. fractional: nine decimals, else whole shares.
    min_value: smaller orders, in currency, are dropped. cost_rate: trading cost as a fraction of traded value.
    collar: distance of limit prices from the decision's price, as a fraction; 0: market orders. limits: that weights
    and purchases are cut to, None without any.
    """

    cash_buffer: Decimal = Decimal("0.02")
    fractional: bool = False
    min_value: Decimal = WHOLE
    cost_rate: Decimal = ZERO
    collar: Decimal = ZERO
    limits: OrderLimits | None = None


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
        excess = sum(weights) - sum(cut) if limits.spread else 0.0
        while excess > TOLERANCE and (room := [i for i, weight in enumerate(cut) if 0 < weight < largest]):
            factor = 1 + excess / sum(cut[i] for i in room)
            excess = sum(max(cut[i] * factor - largest, 0.0) for i in room)
            for i in room:
                cut[i] = min(cut[i] * factor, largest)
    return [weight * total / sum(cut) for weight in cut] if sum(cut) > total * (1 + TOLERANCE) else cut


def size_orders(
    weights: Sequence[float], cash: Decimal, shares: Sequence[Decimal], prices: Sequence[Decimal],
    fixed: Sequence[bool], rules: SizingRules,
) -> list[Decimal]:  # fmt: skip
    """Signed order quantities [N] that bring the holdings to `weights` of equity less the cash buffer.

    cash: currency; shares, prices: [N], prices above 0. fixed: [N], positions that cannot be traded now and get no
    order. Quantities are rounded towards zero; only a remaining fraction of a share that should be closed is sold as
    such. If purchases and fees exceed cash plus proceeds less the buffer, or orders the turnover limit, purchases are
    scaled down by one factor. Weights and purchases are cut to the limits first (`limited_weights`).
    """
    equity = cash + sum((s * p for s, p in zip(shares, prices, strict=True)), ZERO)
    investable = max(equity, ZERO) * (1 - rules.cash_buffer)
    step = FRACTION if rules.fractional else WHOLE
    largest = None if rules.limits is None else rules.limits.max_order * max(equity, ZERO)
    quantities = []
    for weight, held, price, is_fixed in zip(limited_weights(weights, rules), shares, prices, fixed, strict=True):
        if is_fixed:
            quantities.append(ZERO)
            continue
        target = (Decimal(repr(float(weight))) * investable / price).quantize(step, ROUND_DOWN)
        change = (target - held).quantize(step, ROUND_DOWN)
        if target == 0 and held > 0:
            # Close the whole position: whole shares in the auction, then a fraction left by a split.
            change = -(held.quantize(step, ROUND_DOWN) or held)
        if largest is not None and change * price > largest:
            change = (largest / price).quantize(step, ROUND_DOWN)
        quantities.append(change if abs(change) * price >= rules.min_value else ZERO)
    sales = sum((-q * p for q, p in zip(quantities, prices, strict=True) if q < 0), ZERO)
    buys = sum((q * p for q, p in zip(quantities, prices, strict=True) if q > 0), ZERO)
    funds = cash + sales * (1 - rules.cost_rate) - max(equity, ZERO) * rules.cash_buffer
    allowed = funds / (1 + rules.cost_rate)
    if rules.limits is not None:
        allowed = min(allowed, rules.limits.max_turnover * max(equity, ZERO) - sales)
    if buys and buys > allowed:
        factor = max(allowed, ZERO) / buys
        quantities = [(q * factor).quantize(step, ROUND_DOWN) if q > 0 else q for q in quantities]
        quantities = [q if abs(q) * p >= rules.min_value else ZERO for q, p in zip(quantities, prices, strict=True)]
    return quantities


def limit_price(price: Decimal, quantity: Decimal, collar: Decimal) -> Decimal:
    """Limit price of an order of that signed quantity: the edge of the collar, rounded to the broker's tick.

    Prices of 1 and above have two decimals, lower ones four.
    """
    edge = price * (1 + collar if quantity > 0 else 1 - collar)
    step = Decimal("0.01") if edge >= 1 else Decimal("0.0001")
    return max(edge.quantize(step, ROUND_HALF_EVEN), step)
