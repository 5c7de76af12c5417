"""Optimal execution under linear impact in discrete steps, for one trader and for several whose orders move one price.

A step lasts tau. The net flow V_j of all traders (shares, purchases positive) fills at the price of the step

    S_(j-1) + permanent * within_step * V_j + temporary * V_j / tau,    S_j = S_(j-1) + permanent * V_j + noise

(Almgren and Chriss 2000; Carlin, Lobo and Viswanathan 2007 for several traders). A trader may also pay a quadratic cost
of its own. Arrays are numpy float64; M traders, N steps.

`equilibrium` solves the discrete game exactly, in open loop: schedules are fixed at the start. A trader minimises its
own cost + risk, and `cooperation` times the cost + risk of each other: 0 for competitors, 1 for a team.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from finrl_pod.errors import ConfigError
from finrl_pod.types import Floats


@dataclass(frozen=True)
class LinearImpact:
    """Coefficients of linear impact.

    permanent: price per share (gamma). temporary: price per share and unit of time, by the total trading rate
    of all traders (eta; lambda in Carlin, Lobo and Viswanathan). own: the same, by the rate of one trader alone.
    within_step: share of the permanent impact of a step that its own trades pay: 1/2 approaches the continuous limit
    fastest, Almgren and Chriss take 0.
    """

    permanent: float
    temporary: float
    own: float = 0.0
    within_step: float = 0.5

    def shared_kernel(self, steps: int, tau: float) -> Floats:
        """[N, N] matrix K: the flow V [N] moves the fill prices of the steps by K V."""
        earlier_steps = np.tril(np.ones((steps, steps)), -1)
        own_step = self.permanent * self.within_step + self.temporary / tau
        return self.permanent * earlier_steps + own_step * np.eye(steps)

    def own_kernel(self, steps: int, tau: float) -> Floats:
        """[N, N] matrix by which the flow of one trader moves only its fill prices."""
        return self.own / tau * np.eye(steps)


def execution_cost(trades: Floats, impact: LinearImpact, tau: float) -> Floats:
    """Expected cost of each trader over the price at the start: trades [..., M, N] -> [..., M], in currency.

    trades: shares that each trader buys in each step, negative for sales.
    """
    steps = trades.shape[-1]
    shared_kernel = trades.sum(-2, keepdims=True) @ impact.shared_kernel(steps, tau).T  # [..., 1, N]
    own_kernel = trades @ impact.own_kernel(steps, tau).T  # [..., M, N]
    return np.asarray((trades * (shared_kernel + own_kernel)).sum(-1))


def inventory_risk(orders: Floats, trades: Floats, volatility: float, tau: float) -> Floats:
    """Variance of the cost by price noise: orders [..., M], trades [..., M, N] -> [..., M].

    volatility: standard deviation of the price over one unit of time. Shares still to trade after step j bear the noise
    of that step: volatility^2 tau sum_j x_j^2.
    """
    remaining = orders[..., None] - np.cumsum(trades, -1)
    return np.asarray(volatility**2 * tau * (remaining**2).sum(-1))


def risk_aversion_of(impact: LinearImpact, volatility: float, kappa: float, tau: float) -> float:
    """Risk aversion (1 / currency) at which optimal holdings fall by a factor of e in a time of 1 / kappa.

    Raises ConfigError unless eta~, the coefficient of the cost sum_j v_j^2 / tau that a schedule can influence, is
    positive. The rest of permanent impact, permanent X^2 / 2, is the same for every schedule.
    """
    eta = impact.temporary + impact.own + impact.permanent * tau * (impact.within_step - 0.5)
    if eta <= 0:
        raise ConfigError(
            f"temporary impact less half the permanent impact of a step must be above 0, got {eta:g}; "
            "take more steps or a larger temporary impact"
        )
    return 2 * eta * (math.cosh(kappa * tau) - 1) / (volatility * tau) ** 2


def quadratic_form(kernel: Floats, order: float, risk: float) -> tuple[Floats, Floats]:
    """Hessian [N, N] and linear term [N] of v K v + risk sum_j x_j^2 with x_j = order - sum of v up to j."""
    cumulative = np.tril(np.ones_like(kernel))
    return kernel + kernel.T + 2 * risk * cumulative.T @ cumulative, -2 * risk * order * cumulative.sum(0)


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


def equilibrium(orders: Floats, game: ExecutionGame, cooperation: float = 0.0) -> Floats:
    """Trades [M, N] at which no trader gains by changing its own_kernel: orders [M] -> [M, N].

    With cooperation = 1 all share one objective and this is the optimum of the team. The first-order conditions of all
    traders with their constraints sum_j v_ij = order_i form one linear system of M (N + 1) unknowns.
    """
    m = len(orders)
    n = game.steps
    shared_kernel = game.impact.shared_kernel(n, game.tau)
    own_kernel = game.impact.own_kernel(n, game.tau)
    own_block, _ = quadratic_form(shared_kernel + own_kernel, 0.0, game.risk)
    cross_block = shared_kernel + cooperation * shared_kernel.T
    linear = np.stack([quadratic_form(shared_kernel + own_kernel, x, game.risk)[1] for x in orders])  # [M, N]
    rows = np.zeros((m, n + 1, m, n + 1))
    for i in range(m):
        for k in range(m):
            rows[i, :n, k, :n] = own_block if i == k else cross_block
        rows[i, :n, i, n] = -1.0
        rows[i, n, i, :n] = 1.0
    right = np.concatenate([-linear, orders[:, None]], 1).reshape(-1)
    solution = np.linalg.solve(rows.reshape(m * (n + 1), -1), right)
    return np.asarray(solution.reshape(m, n + 1)[:, :n])


def best_response(trader: int, orders: Floats, trades: Floats, game: ExecutionGame) -> Floats:
    """Trades [N] of one competitor that minimise his cost + risk while the others keep `trades` [M, N]."""
    n = game.steps
    shared_kernel = game.impact.shared_kernel(n, game.tau)
    own_kernel = game.impact.own_kernel(n, game.tau)
    flow = trades.sum(0) - trades[trader]
    hessian, linear = quadratic_form(shared_kernel + own_kernel, orders[trader], game.risk)
    system = np.block([[hessian, -np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    return np.asarray(np.linalg.solve(system, np.append(-linear - shared_kernel @ flow, orders[trader]))[:n])


def best_response_gains(orders: Floats, trades: Floats, game: ExecutionGame) -> Floats:
    """Savings of each competitor by the best response to the other `trades` [M, N]: [M] >= 0, in currency."""
    gains = []
    for i in range(len(orders)):
        changed_trades = trades.copy()
        changed_trades[i] = best_response(i, orders, trades, game)
        gains.append(game.objectives(orders, trades)[i] - game.objectives(orders, changed_trades)[i])
    return np.asarray(gains)
