"""Equilibria of traders in one market: discrete game against closed form, best responses, a team's optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from finrl_pod.market.optimal_execution import (
    ExecutionGame,
    LinearImpact,
    best_response_gains,
    equilibrium,
)

RATIO = 3.0


def predatory_holdings(moves: np.ndarray, horizon: float, ratio: float, times: np.ndarray) -> np.ndarray:
    """Shares bought up to `times` [K] in the equilibrium of Carlin, Lobo and Viswanathan: [M, K].

    moves: shares [M] that each trader must buy by `horizon`; ratio: permanent / temporary impact.

        Y_i(t) = a exp(-(n-1)/(n+1) ratio t) + b_i exp(ratio t)
    """
    n = len(moves)
    mean = moves.mean()
    decay = (n - 1) / (n + 1) * ratio
    shared_kernel = times / horizon if n == 1 else np.expm1(-decay * times) / math.expm1(-decay * horizon)
    apart = np.expm1(ratio * times) / math.expm1(ratio * horizon)
    return np.asarray(mean * shared_kernel + (moves - mean)[:, None] * apart)


def bought(trades: np.ndarray) -> np.ndarray:
    """Shares bought after each step [M, N + 1]."""
    return np.concatenate([np.zeros((len(trades), 1)), np.cumsum(trades, -1)], -1)


def distance(moves: np.ndarray, steps: int, within_step: float) -> float:
    """Root mean square difference of the discrete equilibrium from the continuous one."""
    game = ExecutionGame(LinearImpact(RATIO, 1.0, within_step=within_step), 1.0, steps)
    true = predatory_holdings(moves, 1.0, RATIO, np.linspace(0, 1, steps + 1))
    return float(np.sqrt(np.mean((bought(equilibrium(moves, game)) - true) ** 2, axis=-1)).max())


@pytest.mark.parametrize("moves", [(1.0, 0.0), (1.0, -1.0), (1.0, 0.0, 0.0, 0.0, 0.0), (1.0, 0.4)])
def test_discrete_equilibrium_tends_to_the_closed_form(moves: tuple[float, ...]) -> None:
    orders = np.array(moves)
    coarse, fine = distance(orders, 20, 0.5), distance(orders, 80, 0.5)
    assert coarse < 2e-3
    assert fine < coarse / 8  # second order in the length of a step


def test_half_of_a_steps_impact_is_nearest_to_the_closed_form() -> None:
    orders = np.array([1.0, 0.0])
    assert distance(orders, 20, 0.5) < distance(orders, 20, 0.0) / 10


def test_closed_form_meets_its_constraints_and_its_differential_equation() -> None:
    """Each trader's first-order condition: derivative of (2 Y_i + the others) against ratio times the others' flow."""
    moves, times = np.array([1.0, 0.0, -0.3]), np.linspace(0, 1, 2001)
    path = predatory_holdings(moves, 1.0, RATIO, times)
    np.testing.assert_allclose(path[:, 0], 0)
    np.testing.assert_allclose(path[:, -1], moves)
    rate = np.gradient(path, times, axis=1)
    total = rate.sum(0)
    left = np.gradient(rate + total, times, axis=1) + RATIO * (total - rate)
    inner = left[:, 5:-5]
    np.testing.assert_allclose(inner - inner.mean(1, keepdims=True), np.zeros_like(inner), atol=2e-3 * RATIO**2)


def test_nobody_gains_in_equilibrium_and_equal_slices_are_not_one() -> None:
    orders = np.array([1.0, 0.0, 0.0])
    game = ExecutionGame(LinearImpact(RATIO, 1.0, own=0.2), 1.0, 15, volatility=0.5, risk_aversion=2.0)
    np.testing.assert_allclose(best_response_gains(orders, equilibrium(orders, game), game), 0, atol=1e-12)
    slices = orders[:, None] * np.full((1, 15), 1 / 15)
    assert best_response_gains(orders, slices, game).max() > 0.01


@pytest.mark.parametrize("orders", [(1.0, 0.5, -0.2), (1.0, 1.0, 1.0)])
def test_a_teams_optimum_cannot_be_improved_in_any_direction(orders: tuple[float, ...]) -> None:
    game = ExecutionGame(LinearImpact(0.5, 1.0, own=0.5), 1.0, 6, volatility=1.0, risk_aversion=3.0)
    x = np.array(orders)
    best = equilibrium(x, game, cooperation=1.0)
    rng = np.random.default_rng(0)
    change = rng.standard_normal((200, 3, 6)) * 0.1
    change -= change.mean(-1, keepdims=True)  # orders stay complete
    others = game.objectives(x, best + change).sum(-1)
    assert (others > game.objectives(x, best).sum()).all()
    assert game.objectives(x, equilibrium(x, game)).sum() > game.objectives(x, best).sum()
