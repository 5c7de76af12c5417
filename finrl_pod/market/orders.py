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


@dataclass(frozen=True)
class SizingRules:
    """Rules of order sizing.

    cash_buffer: fraction of equity kept in cash at the decision's prices. fractional: nine decimals, else whole shares.
    min_value: smaller orders, in currency, are dropped. cost_rate: trading cost as a fraction of traded value.
    collar: distance of limit prices from the decision's price, as a fraction; 0: market orders.
    """

    cash_buffer: Decimal = Decimal("0.02")
    fractional: bool = False
    min_value: Decimal = WHOLE
    cost_rate: Decimal = ZERO
    collar: Decimal = ZERO


def size_orders(
    weights: Sequence[float], cash: Decimal, shares: Sequence[Decimal], prices: Sequence[Decimal],
    fixed: Sequence[bool], rules: SizingRules,
) -> list[Decimal]:  # fmt: skip
    """Signed order quantities [N] that bring the holdings to `weights` of equity less the cash buffer.

    cash: currency; shares, prices: [N], prices above 0. fixed: [N], positions that cannot be traded now and get no
    order. Quantities are rounded towards zero; only a remaining fraction of a share that should be closed is sold as
    such. If purchases and fees exceed cash plus proceeds less the buffer, they are scaled down by one factor.
    """
    equity = cash + sum((s * p for s, p in zip(shares, prices, strict=True)), ZERO)
    investable = max(equity, ZERO) * (1 - rules.cash_buffer)
    step = FRACTION if rules.fractional else WHOLE
    quantities = []
    for weight, held, price, is_fixed in zip(weights, shares, prices, fixed, strict=True):
        if is_fixed:
            quantities.append(ZERO)
            continue
        target = (Decimal(repr(float(weight))) * investable / price).quantize(step, ROUND_DOWN)
        change = (target - held).quantize(step, ROUND_DOWN)
        if target == 0 and held > 0:
            # Close the whole position: whole shares in the auction, then a fraction left by a split.
            change = -(held.quantize(step, ROUND_DOWN) or held)
        quantities.append(change if abs(change) * price >= rules.min_value else ZERO)
    sales = sum((-q * p for q, p in zip(quantities, prices, strict=True) if q < 0), ZERO)
    buys = sum((q * p for q, p in zip(quantities, prices, strict=True) if q > 0), ZERO)
    funds = cash + sales * (1 - rules.cost_rate) - max(equity, ZERO) * rules.cash_buffer
    need = buys * (1 + rules.cost_rate)
    if buys and need > funds:
        factor = max(funds, ZERO) / need
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
