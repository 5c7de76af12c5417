"""From target weights to orders in shares as a broker takes them: rounded, and sized before the fill is known.

The paper-trading daemon and the backtest with execution="paper" size their orders here, so they ask for the same.
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
    """cash_buffer: share of equity kept in cash at the decision's prices. fractional: nine decimals, else whole shares.

    min_value: orders below it, in currency, are left out. cost_rate: what a trade costs, as a share of its value.
    collar: limit prices that far from the decision's price; 0: market orders.
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
    """Signed share quantities [N] that move the holdings to `weights` of the equity less the buffer.

    cash: currency; shares, prices: [N], prices above zero. fixed: holdings that cannot be traded now; they stay, and
    their order is zero. Everything is rounded towards zero; only where less than a share is held and none is wanted,
    that fraction is the order, with whole shares too. When the purchases would cost more, with their fees, than cash
    and sales bring less the buffer, all are scaled down by one factor.
    """
    equity = cash + sum((s * p for s, p in zip(shares, prices, strict=True)), ZERO)
    investable = max(equity, ZERO) * (1 - rules.cash_buffer)
    step = FRACTION if rules.fractional else WHOLE
    wanted = []
    for weight, held, price, stays in zip(weights, shares, prices, fixed, strict=True):
        if stays:
            wanted.append(ZERO)
            continue
        target = (Decimal(repr(float(weight))) * investable / price).quantize(step, ROUND_DOWN)
        change = (target - held).quantize(step, ROUND_DOWN)
        if target == 0 and held > 0:
            # A position is left wholly: the whole shares join the auction, a fraction that a split left follows alone.
            change = -(held.quantize(step, ROUND_DOWN) or held)
        wanted.append(change if abs(change) * price >= rules.min_value else ZERO)
    sales = sum((-q * p for q, p in zip(wanted, prices, strict=True) if q < 0), ZERO)
    buys = sum((q * p for q, p in zip(wanted, prices, strict=True) if q > 0), ZERO)
    funds = cash + sales * (1 - rules.cost_rate) - max(equity, ZERO) * rules.cash_buffer
    need = buys * (1 + rules.cost_rate)
    if buys and need > funds:
        factor = max(funds, ZERO) / need
        wanted = [(q * factor).quantize(step, ROUND_DOWN) if q > 0 else q for q in wanted]
        wanted = [q if abs(q) * p >= rules.min_value else ZERO for q, p in zip(wanted, prices, strict=True)]
    return wanted


def limit_price(price: Decimal, quantity: Decimal, collar: Decimal) -> Decimal:
    """The limit of an order of that signed quantity: the collar's edge, rounded to the step that brokers take.

    Prices of 1 and more have two decimals, those below have four.
    """
    edge = price * (1 + collar if quantity > 0 else 1 - collar)
    step = Decimal("0.01") if edge >= 1 else Decimal("0.0001")
    return max(edge.quantize(step, ROUND_HALF_EVEN), step)
