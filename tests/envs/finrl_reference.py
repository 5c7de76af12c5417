"""FinRL's stock trading rules in plain numpy, written from the rules and not from our environment.

Trades fill at the close that was observed. Whole shares: the action times hmax, truncated. Sells first, at most what
is held; then buys by descending action, each as far as the cash goes; 0.1% of the value of each trade is its cost.
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
        """Trade at today's close, go to the next day, return the total assets at its close."""
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
