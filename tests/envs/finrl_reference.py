"""FinRL's stock trading rules in plain numpy, implemented independently of this project's environment.

Trades fill at the observed close. Share changes are action * hmax, truncated to whole shares. Sells come first, at most
the shares held; then buys in order of descending action, each limited by the remaining cash. The cost is 0.1% of the
value of each trade.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class FinrlAccount:
    """One account in float64."""

    def __init__(self, close: NDArray[np.float64], cash: float = 1e6, hmax: float = 100.0, cost: float = 1e-3) -> None:
        self.close, self.hmax, self.cost = close, hmax, cost
        self.day, self.cash, self.shares = 0, cash, np.zeros(close.shape[1])

    def step(self, action: NDArray[np.floating]) -> float:
        """Trade at today's close, move to the next day and return the total assets at its close."""
        price = self.close[self.day]
        lots = np.trunc(action * self.hmax)
        for asset in np.flatnonzero(lots < 0):
            sold = min(-lots[asset], self.shares[asset])
            self.shares[asset] -= sold
            self.cash += sold * price[asset] * (1 - self.cost)
        for asset in np.argsort(-action, kind="stable"):
            if lots[asset] > 0:
                unit = price[asset] * (1 + self.cost)
                bought = min(self.cash // unit, lots[asset])
                self.shares[asset] += bought
                self.cash -= bought * unit
        self.day += 1
        return float(self.cash + (self.shares * self.close[self.day]).sum())
