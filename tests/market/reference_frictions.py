"""Reference implementation of `execute_with_frictions` for one account: plain loops, explicit costs, bisection."""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_ORDER_FRACTION = 1e-6


@dataclass(frozen=True)
class ReferenceCosts:
    """Parameters of all cost models; zero turns a model off."""

    rate: float = 0.0
    spread: float = 0.0
    per_share: float = 0.0
    minimum: float = 0.0
    impact: float = 0.0

    def of(self, amount: float, price: float, volume: float, volatility: float) -> float:
        if amount <= 0:
            return 0.0
        value = amount * price
        cost = (self.rate + self.spread) * value
        if self.per_share or self.minimum:
            cost += max(self.per_share * amount, self.minimum)
        if self.impact:
            cost += self.impact * volatility * math.sqrt(amount / max(volume, 1.0)) * value
        return cost


@dataclass
class ReferenceFills:
    cash: float
    shares: list[float]
    cost: float
    traded: float
    limited: bool


def reference_execute_with_frictions(
    cash: float,
    shares: list[float],
    trades: list[float],
    prices: list[float],
    costs: ReferenceCosts,
    volumes: list[float],
    volatilities: list[float],
    *,
    participation: float = 0.0,
    whole: bool = False,
    short: bool = False,
    borrow: float = 0.0,
) -> ReferenceFills:
    """Limit trades to the volume, sell, then find by bisection the fraction of the buys that the cash can pay for."""
    assets = range(len(shares))
    equity = abs(cash + sum(s * p for s, p in zip(shares, prices, strict=True)))
    shares, requested = list(shares), []
    for i in assets:
        trade = trades[i]
        if participation:
            limit = participation * volumes[i]
            trade = max(-limit, min(limit, trade))
        if costs.minimum and abs(trade) * prices[i] < MIN_ORDER_FRACTION * equity and trade != -shares[i]:
            trade = 0.0
        requested.append(float(math.trunc(trade)) if whole else trade)
    paid = traded = 0.0
    for i in assets:
        if requested[i] < 0:
            sold = -requested[i] if short else min(-requested[i], shares[i])
            proceeds = sold * prices[i]
            cost = min(costs.of(sold, prices[i], volumes[i], volatilities[i]), proceeds)
            cash, shares[i] = cash + proceeds - cost, shares[i] - sold
            paid, traded = paid + cost, traded + proceeds
    floor = -borrow * max(cash + sum(s * p for s, p in zip(shares, prices, strict=True)), 0.0)
    funds = max(cash - floor, 0.0)

    cover = [
        min(max(requested[i], 0.0), max(-shares[i], 0.0)) if short else 0.0 for i in assets
    ]  # shorts are always covered in full
    opening = [max(requested[i], 0.0) - cover[i] for i in assets]

    def total_cost(factor: float) -> float:
        amounts = [cover[i] + opening[i] * factor for i in assets]
        return sum(a * prices[i] + costs.of(a, prices[i], volumes[i], volatilities[i]) for i, a in enumerate(amounts))

    factor = 1.0
    if total_cost(1.0) > funds:
        low, high = 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if total_cost(middle) <= funds else (low, middle)
        factor = low
    for i in assets:
        bought = opening[i] * factor
        bought = cover[i] + (float(math.floor(bought)) if whole else bought)
        cost = costs.of(bought, prices[i], volumes[i], volatilities[i])
        cash, shares[i] = cash - bought * prices[i] - cost, shares[i] + bought
        paid, traded = paid + cost, traded + bought * prices[i]
    return ReferenceFills(cash, shares, paid, traded, factor < 1)
