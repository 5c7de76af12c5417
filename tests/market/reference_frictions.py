"""The rules of settlement as a plain Python loop over floats: one account, costs by hand, the factor by bisection."""

from __future__ import annotations

import math
from dataclasses import dataclass

DUST = 1e-6


@dataclass(frozen=True)
class PlainCosts:
    """The numbers of every model at once; zero turns one off."""

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


def plain_settle(
    cash: float,
    shares: list[float],
    trades: list[float],
    prices: list[float],
    costs: PlainCosts,
    volumes: list[float],
    volatilities: list[float],
    *,
    participation: float = 0.0,
    whole: bool = False,
    short: bool = False,
    borrow: float = 0.0,
) -> ReferenceFills:
    """Cut to the volume, sell, then find by bisection how much of the purchases the cash can bear."""
    places = range(len(shares))
    worth = abs(cash + sum(s * p for s, p in zip(shares, prices, strict=True)))
    shares, wanted = list(shares), []
    for i in places:
        trade = trades[i]
        if participation:
            most = participation * volumes[i]
            trade = max(-most, min(most, trade))
        if costs.minimum and abs(trade) * prices[i] < DUST * worth and trade != -shares[i]:
            trade = 0.0
        wanted.append(float(math.trunc(trade)) if whole else trade)
    paid = traded = 0.0
    for i in places:
        if wanted[i] < 0:
            sold = -wanted[i] if short else min(-wanted[i], shares[i])
            brought = sold * prices[i]
            cost = min(costs.of(sold, prices[i], volumes[i], volatilities[i]), brought)
            cash, shares[i] = cash + brought - cost, shares[i] - sold
            paid, traded = paid + cost, traded + brought
    floor = -borrow * max(cash + sum(s * p for s, p in zip(shares, prices, strict=True)), 0.0)
    funds = max(cash - floor, 0.0)

    cover = [min(max(wanted[i], 0.0), max(-shares[i], 0.0)) if short else 0.0 for i in places]  # paid for in any case
    opening = [max(wanted[i], 0.0) - cover[i] for i in places]

    def bill(factor: float) -> float:
        amounts = [cover[i] + opening[i] * factor for i in places]
        return sum(a * prices[i] + costs.of(a, prices[i], volumes[i], volatilities[i]) for i, a in enumerate(amounts))

    factor = 1.0
    if bill(1.0) > funds:
        low, high = 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if bill(middle) <= funds else (low, middle)
        factor = low
    for i in places:
        bought = opening[i] * factor
        bought = cover[i] + (float(math.floor(bought)) if whole else bought)
        cost = costs.of(bought, prices[i], volumes[i], volatilities[i])
        cash, shares[i] = cash - bought * prices[i] - cost, shares[i] + bought
        paid, traded = paid + cost, traded + bought * prices[i]
    return ReferenceFills(cash, shares, paid, traded, factor < 1)
