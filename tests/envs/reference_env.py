"""Reference market environment: one account, plain Python loops, floats. The oracle for the batched environments."""

from __future__ import annotations

import math

from finrl_pod.market.execution import ExecutionRules
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor
from tests.market.reference_execution import ReferenceFills, reference_execute


class ReferenceEnv:
    """A long-only portfolio or stock_trading account that starts at bar `bar`."""

    def __init__(self, market: MarketTensor, config: EnvironmentConfig, bar: int) -> None:
        self.config, self.bar = config, bar
        self.rules = ExecutionRules(
            config.cost_bps / 1e4, config.whole_shares, config.short, config.buy_allocation, config.leverage
        )
        self.close, self.fill = market.close.tolist(), market.fill.tolist()
        self.tradable, self.fillable = market.tradable.tolist(), market.fillable.tolist()
        self.delisted = market.delisted.tolist()
        self.cash, self.shares = config.cash, [0.0] * market.shape[1]

    def value(self, prices: list[float]) -> float:
        return self.cash + sum(s * p for s, p in zip(self.shares, prices, strict=True))

    def requested_trades(self, action: list[float]) -> list[float]:
        """Share changes before market limits are applied."""
        if self.config.kind == "stock_trading":
            return [max(-1.0, min(1.0, a)) * self.config.hmax for a in action]
        tradable = self.tradable[self.bar]
        highest = max([action[0]] + [a for a, ok in zip(action[1:], tradable, strict=True) if ok])
        exponentials = [math.exp(action[0] - highest)]
        exponentials += [math.exp(a - highest) if ok else 0.0 for a, ok in zip(action[1:], tradable, strict=True)]
        total, account_value = sum(exponentials), self.value(self.close[self.bar])
        return [
            p / total * self.config.leverage * account_value / c - s
            for p, c, s in zip(exponentials[1:], self.close[self.bar], self.shares, strict=True)
        ]

    def step(self, action: list[float]) -> tuple[float, ReferenceFills]:
        """Return the log growth of the account between the two fill prices, and the fills."""
        t = self.bar
        trades = self.requested_trades(action)
        for i, _ in enumerate(trades):
            if not self.fillable[t][i]:
                trades[i] = -self.shares[i] if self.delisted[t][i] else 0.0
        before = self.value(self.fill[t])
        priority = [max(-1.0, min(1.0, a)) for a in action] if self.config.kind == "stock_trading" else None
        result = reference_execute(self.cash, self.shares, trades, self.fill[t], self.rules, priority)
        self.cash, self.shares, self.bar = result.cash, result.shares, t + 1
        return math.log(self.value(self.fill[t + 1]) / before), result
