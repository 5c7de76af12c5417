"""Reference implementation of `execute` as a plain Python loop over floats, for one account."""

from __future__ import annotations

import math
from dataclasses import dataclass

from finrl_pod.market.execution import ExecutionRules


@dataclass
class ReferenceFills:
    cash: float
    shares: list[float]
    cost: float
    traded: float
    # Smallest relative distance of a share count from a whole number before truncation. If it is tiny, rounding of the
    # inputs may change the result by one share.
    margin: float


def reference_execute(
    cash: float,
    shares: list[float],
    trades: list[float],
    prices: list[float],
    rules: ExecutionRules,
    priority: list[float] | None = None,
) -> ReferenceFills:
    """Execute sells, then buys, for one account; see ExecutionRules."""
    margin, traded, rate = math.inf, 0.0, rules.cost_rate
    shares, trades = list(shares), list(trades)

    def whole(x: float) -> float:
        nonlocal margin
        margin = min(margin, abs(x - round(x)) / max(abs(x), 1.0))
        return float(math.trunc(x))

    if rules.whole_shares:
        trades = [float(math.trunc(x)) for x in trades]
    priority = list(trades if priority is None else priority)
    for i, trade in enumerate(trades):
        if trade < 0:
            sold = -trade if rules.short else min(-trade, shares[i])
            shares[i] -= sold
            cash += sold * prices[i] * (1 - rate)
            traded += sold * prices[i]
    equity = cash + sum(s * p for s, p in zip(shares, prices, strict=True))
    budget = cash + rules.borrow * max(equity, 0.0)
    buys = [max(x, 0.0) for x in trades]
    for i, bought in enumerate(buys if rules.short else ()):  # shorts are covered first, on credit if necessary
        cover = min(bought, max(-shares[i], 0.0))
        buys[i] -= cover
        shares[i] += cover
        cash -= cover * prices[i] * (1 + rate)
        traded += cover * prices[i]
        budget -= cover * prices[i] * (1 + rate)
    budget = max(budget, 0.0)
    if rules.buy_allocation == "proportional":
        need = sum(b * p for b, p in zip(buys, prices, strict=True)) * (1 + rate)
        scale = min(1.0, budget / need) if need > 0 else 1.0
        buys = [b * scale if scale < 1 else b for b in buys]
        if rules.whole_shares and scale < 1:
            buys = [whole(b) for b in buys]
    else:
        for i in sorted(range(len(buys)), key=lambda i: (-priority[i], i)):
            unit = prices[i] * (1 + rate)
            if buys[i] * unit > budget * (1 - 1e-5):
                affordable = budget / unit
                buys[i] = min(whole(affordable) if rules.whole_shares else affordable, buys[i])
            budget = max(budget - buys[i] * unit, 0.0)
    for i, bought in enumerate(buys):
        shares[i] += bought
        cash -= bought * prices[i] * (1 + rate)
        traded += bought * prices[i]
    return ReferenceFills(cash, shares, traded * rate, traded, margin)
