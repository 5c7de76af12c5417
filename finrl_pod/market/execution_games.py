"""Several traders whose orders move one price: equilibrium, best response and the optimum of a team.

`predatory_holdings` is the closed form of Carlin, Lobo and Viswanathan (2007) in continuous time. The rest solves the
discrete game of `linear_impact.py` exactly, in open loop: schedules are fixed at the start. M traders, N steps.

A trader minimises his own cost + risk, and `cooperation` times that of each other: 0 for competitors, 1 for a team.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from finrl_pod.errors import ConfigError
from finrl_pod.market.linear_impact import LinearImpact, execution_cost, inventory_risk
from finrl_pod.market.optimal_execution import constrained_minimum, quadratic_form
from finrl_pod.types import Floats


@dataclass(frozen=True)
class ExecutionGame:
    """What the traders face: impact, horizon in units of time, steps, and the common risk aversion (1 / currency)."""

    impact: LinearImpact
    horizon: float
    steps: int
    volatility: float = 0.0
    risk_aversion: float = 0.0

    @property
    def tau(self) -> float:
        """Length of a step."""
        return self.horizon / self.steps

    @property
    def risk(self) -> float:
        """Weight of a squared holding: risk_aversion volatility^2 tau."""
        return self.risk_aversion * self.volatility**2 * self.tau

    def objectives(self, orders: Floats, trades: Floats) -> Floats:
        """Cost + risk of each trader: orders [..., M], trades [..., M, N] -> [..., M]."""
        risk = inventory_risk(orders, trades, self.volatility, self.tau)
        return execution_cost(trades, self.impact, self.tau) + self.risk_aversion * risk


def predatory_holdings(moves: Floats, horizon: float, ratio: float, times: Floats) -> Floats:
    """Shares bought up to `times` [K] in the equilibrium of Carlin, Lobo and Viswanathan: [M, K].

    moves: shares [M] that each trader must buy by `horizon`; ratio: permanent / temporary impact.

        Y_i(t) = a exp(-(n-1)/(n+1) ratio t) + b_i exp(ratio t)
    """
    n, mean = len(moves), moves.mean()
    decay = (n - 1) / (n + 1) * ratio
    if ratio <= 0:
        raise ConfigError(f"the ratio of permanent to temporary impact must be above 0, got {ratio:g}")
    shared = times / horizon if n == 1 else np.expm1(-decay * times) / math.expm1(-decay * horizon)
    apart = np.expm1(ratio * times) / math.expm1(ratio * horizon)
    return np.asarray(mean * shared + (moves - mean)[:, None] * apart)


def equilibrium(orders: Floats, game: ExecutionGame, cooperation: float = 0.0) -> Floats:
    """Trades [M, N] at which no trader gains by changing its own: orders [M] -> [M, N].

    With cooperation = 1 all share one objective and this is the optimum of the team. The first-order conditions of all
    traders with their constraints sum_j v_ij = order_i form one linear system of M (N + 1) unknowns.
    """
    m, n = len(orders), game.steps
    shared, own = game.impact.shared_kernel(n, game.tau), game.impact.own_kernel(n, game.tau)
    mine, _ = quadratic_form(shared + own, 0.0, game.risk)
    others = shared + cooperation * shared.T
    linear = np.stack([quadratic_form(shared + own, x, game.risk)[1] for x in orders])  # [M, N]
    rows = np.zeros((m, n + 1, m, n + 1))
    for i in range(m):
        for k in range(m):
            rows[i, :n, k, :n] = mine if i == k else others
        rows[i, :n, i, n] = -1.0
        rows[i, n, i, :n] = 1.0
    right = np.concatenate([-linear, orders[:, None]], 1).reshape(-1)
    solved = np.linalg.solve(rows.reshape(m * (n + 1), -1), right)
    return np.asarray(solved.reshape(m, n + 1)[:, :n])


def best_response(trader: int, orders: Floats, trades: Floats, game: ExecutionGame) -> Floats:
    """Trades [N] of one competitor that minimise his cost + risk while the others keep `trades` [M, N]."""
    shared, own = (kernel(game.steps, game.tau) for kernel in (game.impact.shared_kernel, game.impact.own_kernel))
    flow = trades.sum(0) - trades[trader]
    hessian, linear = quadratic_form(shared + own, orders[trader], game.risk)
    return constrained_minimum(hessian, linear + shared @ flow, float(orders[trader]))


def best_response_gains(orders: Floats, trades: Floats, game: ExecutionGame) -> Floats:
    """What each competitor would save by his best response to the others' `trades` [M, N]: [M] >= 0, in currency."""
    gains = []
    for i in range(len(orders)):
        changed = trades.copy()
        changed[i] = best_response(i, orders, trades, game)
        gains.append(game.objectives(orders, trades)[i] - game.objectives(orders, changed)[i])
    return np.asarray(gains)
