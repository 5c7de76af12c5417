"""A market environment once more: one account, a Python loop, floats. The oracle for the batched environments."""

from __future__ import annotations

import math

from finrl_pod.market.execution import ExecutionRules
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor
from tests.market.reference_execution import ReferenceFills, reference_execute


class ReferenceEnv:
    """Long-only accounts of both kinds, from bar `day` on."""

    def __init__(self, market: MarketTensor, config: EnvironmentConfig, day: int) -> None:
        self.config, self.day = config, day
        self.rules = ExecutionRules(
            config.cost_bps / 1e4, config.whole_shares, config.short, config.buy_allocation, config.leverage
        )
        self.close, self.fill = market.close.tolist(), market.fill.tolist()
        self.tradable, self.fillable = market.tradable.tolist(), market.fillable.tolist()
        self.ended = market.ended.tolist()
        self.cash, self.shares = config.cash, [0.0] * market.shape[1]

    def value(self, prices: list[float]) -> float:
        return self.cash + sum(s * p for s, p in zip(self.shares, prices, strict=True))

    def wanted(self, action: list[float]) -> list[float]:
        """Share changes before the market's limits."""
        if self.config.kind == "stock_trading":
            return [max(-1.0, min(1.0, a)) * self.config.hmax for a in action]
        known = self.tradable[self.day]
        top = max([action[0]] + [a for a, ok in zip(action[1:], known, strict=True) if ok])
        powers = [math.exp(action[0] - top)]
        powers += [math.exp(a - top) if ok else 0.0 for a, ok in zip(action[1:], known, strict=True)]
        total, worth = sum(powers), self.value(self.close[self.day])
        return [
            p / total * self.config.leverage * worth / c - s
            for p, c, s in zip(powers[1:], self.close[self.day], self.shares, strict=True)
        ]

    def step(self, action: list[float]) -> tuple[float, ReferenceFills]:
        """Log growth from this fill to the next, and the fills."""
        t = self.day
        trades = self.wanted(action)
        for i, _ in enumerate(trades):
            if not self.fillable[t][i]:
                trades[i] = -self.shares[i] if self.ended[t][i] else 0.0
        before = self.value(self.fill[t])
        priority = [max(-1.0, min(1.0, a)) for a in action] if self.config.kind == "stock_trading" else None
        done = reference_execute(self.cash, self.shares, trades, self.fill[t], self.rules, priority)
        self.cash, self.shares, self.day = done.cash, done.shares, t + 1
        return math.log(self.value(self.fill[t + 1]) / before), done
