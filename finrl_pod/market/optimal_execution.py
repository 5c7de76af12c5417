"""Optimal execution of one order under linear impact: Almgren and Chriss (2000).

The closed forms are the paper's (equations 15 to 20), in discrete time; `optimal_trades` solves the same problem as a
quadratic programme for any linear impact. Holdings are shares still to trade, [N + 1] from the order to 0.
"""

from __future__ import annotations

import math

import numpy as np

from finrl_pod.errors import ConfigError
from finrl_pod.market.linear_impact import LinearImpact, execution_cost, inventory_risk
from finrl_pod.types import Floats


def effective_temporary(impact: LinearImpact, tau: float) -> float:
    """Coefficient eta~ of the quadratic cost sum_j v_j^2 / tau that a schedule can influence.

    The rest of the permanent impact's cost, permanent X^2 / 2, is the same for every schedule. Raises ConfigError
    unless it is positive: the cost would not be convex.
    """
    value = impact.temporary + impact.own + impact.permanent * tau * (impact.within_step - 0.5)
    if value <= 0:
        raise ConfigError(
            f"temporary impact less half the permanent impact of a step must be above 0, got {value:g}; "
            "take more steps or a larger temporary impact"
        )
    return value


def decay_rate(impact: LinearImpact, volatility: float, risk_aversion: float, tau: float) -> float:
    """kappa: 1 / kappa is the time in which the optimal holdings fall by a factor of e."""
    eta = effective_temporary(impact, tau)
    return math.acosh(risk_aversion * (volatility * tau) ** 2 / (2 * eta) + 1) / tau


def risk_aversion_of(impact: LinearImpact, volatility: float, kappa: float, tau: float) -> float:
    """Risk aversion (1 / currency) at which the decay rate is `kappa`; the inverse of `decay_rate`."""
    return 2 * effective_temporary(impact, tau) * (math.cosh(kappa * tau) - 1) / (volatility * tau) ** 2


def almgren_chriss_holdings(order: float, horizon: float, steps: int, kappa: float) -> Floats:
    """Optimal holdings [N + 1] of the closed form; equal slices at kappa = 0."""
    left = horizon * (1 - np.arange(steps + 1) / steps)
    if kappa * horizon < 1e-6:
        return order * left / horizon
    # sinh(a) / sinh(b) with a <= b, without overflow
    top = kappa * horizon
    return np.asarray(
        order * np.exp(kappa * left - top) * -np.expm1(-2 * kappa * left) / -math.expm1(-2 * top), dtype=np.float64
    )


def almgren_chriss_cost(order: float, horizon: float, steps: int, kappa: float, impact: LinearImpact) -> float:
    """Expected cost of the optimal schedule in closed form, without fixed costs a share (equation 19)."""
    tau = horizon / steps
    eta = effective_temporary(impact, tau)
    if kappa * horizon < 1e-6:
        return impact.permanent * order**2 / 2 + eta * order**2 / horizon
    numerator = tau * math.sinh(2 * kappa * horizon) + 2 * horizon * math.sinh(kappa * tau)
    factor = math.tanh(kappa * tau / 2) * numerator / (2 * tau**2 * math.sinh(kappa * horizon) ** 2)
    return impact.permanent * order**2 / 2 + eta * order**2 * factor


def optimal_trades(
    order: float, impact: LinearImpact, horizon: float, steps: int, volatility: float, risk_aversion: float
) -> Floats:
    """Trades [N] that minimise cost + risk aversion x variance, by the linear system of first-order conditions."""
    tau = horizon / steps
    kernel = impact.shared_kernel(steps, tau) + impact.own_kernel(steps, tau)
    hessian, linear = quadratic_form(kernel, order, risk_aversion * volatility**2 * tau)
    return constrained_minimum(hessian, linear, order)


def quadratic_form(kernel: Floats, order: float, risk: float) -> tuple[Floats, Floats]:
    """Hessian [N, N] and linear term [N] of v K v + risk sum_j x_j^2 with x_j = order - sum of v up to j."""
    done = np.tril(np.ones_like(kernel))
    return kernel + kernel.T + 2 * risk * done.T @ done, -2 * risk * order * done.sum(0)


def constrained_minimum(hessian: Floats, linear: Floats, total: float) -> Floats:
    """Minimum [N] of v H v / 2 + c v under sum(v) = total."""
    n = len(linear)
    system = np.block([[hessian, -np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    return np.asarray(np.linalg.solve(system, np.append(-linear, total))[:n])


def schedule_cost(
    holdings: Floats, impact: LinearImpact, horizon: float, volatility: float, risk_aversion: float
) -> float:
    """Cost + risk aversion x variance of holdings [N + 1], without the part that no schedule can change."""
    order, tau = holdings[:1], horizon / (len(holdings) - 1)
    trades = -np.diff(holdings)[None]
    total = execution_cost(trades, impact, tau) + risk_aversion * inventory_risk(order, trades, volatility, tau)
    return float(total[0] - impact.permanent * order[0] ** 2 / 2)
