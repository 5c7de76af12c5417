"""Optimal execution of one order: closed forms against linear system, optimiser and published numbers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from finrl_pod.errors import ConfigError
from finrl_pod.market.optimal_execution import (
    ExecutionGame,
    LinearImpact,
    equilibrium,
    execution_cost,
    inventory_risk,
    risk_aversion_of,
)

# Table 1 of Almgren and Chriss (2000): a million shares over five days, prices in dollars.
PAPER = LinearImpact(permanent=2.5e-7, temporary=2.5e-6, within_step=0.0)
ORDER, DAYS, STEPS, VOLATILITY, RISK_AVERSION = 1e6, 5.0, 5, 0.95, 1e-6


def almgren_chriss_holdings(order: float, horizon: float, steps: int, kappa: float) -> np.ndarray:
    """Shares still to trade [N + 1] by equation 17; equal slices at kappa = 0."""
    left = horizon * (1 - np.arange(steps + 1) / steps)
    return order * (np.sinh(kappa * left) / np.sinh(kappa * horizon) if kappa else left / horizon)


def test_published_decay_rate() -> None:
    """The paper: kappa about 0.61 a day, a half-life of 1.6 days."""
    assert risk_aversion_of(PAPER, VOLATILITY, 0.606, DAYS / STEPS) == pytest.approx(RISK_AVERSION, rel=5e-3)


@pytest.mark.parametrize("within_step", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kappa", [0.0, 0.2, 0.6, 2.0])
def test_closed_form_is_the_solution_of_the_linear_system(kappa: float, within_step: float) -> None:
    impact = LinearImpact(2.5e-7, 2.5e-6, within_step=within_step)
    risk_aversion = risk_aversion_of(impact, VOLATILITY, kappa, DAYS / 20)
    trades = equilibrium(np.array([ORDER]), ExecutionGame(impact, DAYS, 20, VOLATILITY, risk_aversion))[0]
    np.testing.assert_allclose(-np.diff(almgren_chriss_holdings(ORDER, DAYS, 20, kappa)), trades, rtol=1e-8, atol=1e-3)


def test_linear_system_agrees_with_a_numerical_optimiser() -> None:
    impact = LinearImpact(0.4, 1.0, own=0.3)

    def objective(free: np.ndarray) -> float:
        trades = np.append(free, 1.0 - free.sum())[None]
        return float((execution_cost(trades, impact, 0.25) + 2 * inventory_risk(np.ones(1), trades, 1.5, 0.25))[0])

    found = minimize(objective, np.full(7, 1 / 8), tol=1e-12).x
    trades = equilibrium(np.ones(1), ExecutionGame(impact, 2.0, 8, 1.5, 2.0))[0]
    np.testing.assert_allclose(trades[:-1], found, atol=1e-5)


def test_cost_of_a_schedule_worked_out_by_hand() -> None:
    """Two trades of 1 and 3 shares: prices 0.5 * 0.2 + 2 * 1 / 0.5 and 0.2 * 1 + 0.5 * 0.2 * 3 + 2 * 3 / 0.5."""
    impact = LinearImpact(0.2, 2.0)
    assert execution_cost(np.array([[1.0, 3.0]]), impact, 0.5)[0] == pytest.approx(4.1 + 3 * 12.5)
    assert inventory_risk(np.array([4.0]), np.array([[1.0, 3.0]]), 2.0, 0.5)[0] == pytest.approx(4 * 0.5 * 9)


def test_cost_matches_a_simulation_with_price_noise() -> None:
    """Mean and variance of the simulated cost against the formulas."""
    impact, tau, volatility = LinearImpact(0.2, 0.5, within_step=0.3), 0.5, 0.7
    trades = np.array([1.0, -0.5, 2.0, 0.5])
    rng = np.random.default_rng(0)
    price, cost, runs = np.zeros(200_000), np.zeros(200_000), 200_000
    for v in trades:
        cost += v * (price + impact.permanent * impact.within_step * v + impact.temporary * v / tau)
        price += impact.permanent * v + volatility * np.sqrt(tau) * rng.standard_normal(runs)
    expected = execution_cost(trades[None], impact, tau)[0]
    variance = inventory_risk(np.array([3.0]), trades[None], volatility, tau)[0]
    assert cost.mean() == pytest.approx(expected, abs=4 * cost.std() / np.sqrt(runs))
    assert cost.var() == pytest.approx(variance, rel=0.02)


def test_concave_cost_is_refused() -> None:
    with pytest.raises(ConfigError, match="take more steps"):
        risk_aversion_of(LinearImpact(1.0, 0.1, within_step=0.0), 1.0, 1.0, 1.0)
