"""Linear price impact of traders who trade the same asset in discrete steps, and what their orders cost.

A step lasts tau and the traders' net flow V_j (shares, purchases positive) fills at the step's price

    S_(j-1) + permanent * within_step * V_j + temporary * V_j / tau,    S_j = S_(j-1) + permanent * V_j + noise

for all of them (Almgren and Chriss 2000; Carlin, Lobo and Viswanathan 2007 for several traders). A trader may pay a
quadratic cost of his own besides. Arrays are numpy float64; M traders, N steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finrl_pod.errors import ConfigError
from finrl_pod.types import Floats

CONTINUOUS_LIMIT = 0.5  # permanent impact grows evenly during a step, so that its trades pay half of it on average


@dataclass(frozen=True)
class LinearImpact:
    """Coefficients of linear impact.

    permanent: price per share (gamma). temporary: price per share and unit of time, by the traders' total rate of
    trading (eta; lambda in Carlin, Lobo and Viswanathan). own: the same, by a trader's own rate alone.
    within_step: share of a step's permanent impact that its own trades pay: 1/2 approaches the continuous limit
    fastest, Almgren and Chriss take 0.
    """

    permanent: float
    temporary: float
    own: float = 0.0
    within_step: float = CONTINUOUS_LIMIT

    def __post_init__(self) -> None:
        for name, value in (("permanent", self.permanent), ("temporary", self.temporary), ("own", self.own)):
            if not 0 <= value < np.inf:
                raise ConfigError(f"{name} impact must be a finite number of 0 or more, got {value}")
        if not 0 <= self.within_step <= 1:
            raise ConfigError(f"within_step must be 0 to 1, got {self.within_step}")

    def shared_kernel(self, steps: int, tau: float) -> Floats:
        """[N, N] matrix K: the flow V [N] moves the fill prices of the steps by K V."""
        earlier = np.tril(np.ones((steps, steps)), -1)
        return self.permanent * earlier + (self.permanent * self.within_step + self.temporary / tau) * np.eye(steps)

    def own_kernel(self, steps: int, tau: float) -> Floats:
        """[N, N] matrix by which a trader's own flow moves his fill prices besides."""
        return self.own / tau * np.eye(steps)


def execution_cost(trades: Floats, impact: LinearImpact, tau: float) -> Floats:
    """Expected cost of each trader over the price at the start: trades [..., M, N] -> [..., M], in currency.

    trades: shares that each trader buys in each step, negative for sales.
    """
    steps = trades.shape[-1]
    shared = trades.sum(-2, keepdims=True) @ impact.shared_kernel(steps, tau).T  # [..., 1, N]
    own = trades @ impact.own_kernel(steps, tau).T  # [..., M, N]
    return np.asarray((trades * (shared + own)).sum(-1))


def inventory_risk(orders: Floats, trades: Floats, volatility: float, tau: float) -> Floats:
    """Variance of the cost by the price's noise: orders [..., M], trades [..., M, N] -> [..., M].

    volatility: standard deviation of the price over one unit of time. Shares still to trade after step j bear the noise
    of that step: volatility^2 tau sum_j x_j^2.
    """
    remaining = orders[..., None] - np.cumsum(trades, -1)
    return np.asarray(volatility**2 * tau * (remaining**2).sum(-1))
