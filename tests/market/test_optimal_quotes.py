"""A market maker's optimal quotes: closed form, dynamic programme and simulation against each other."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from finrl_pod.market.optimal_quotes import (
    MakerProblem,
    Quotes,
    evaluate_quotes,
    solve_quotes,
    visited_inventories,
)

# Parameters that Avellaneda and Stoikov (2008) simulate, with an inventory limit.
PROBLEM = MakerProblem(140, 1.5, 1.0, 5, running_penalty=0.2)


def glft_quotes(problem: MakerProblem, time_left: float) -> Quotes:
    """Optimal quotes [2Q + 1] in continuous time (Gueant, Lehalle and Fernandez-Tapia 2013), in its additive form.

    v(t) = exp(-M (T - t)) 1 with M tridiagonal; delta_bid(q) = ln(v_q / v_(q+1)) / k + 1 / k.
    """
    k, q = problem.decay, problem.inventories
    matrix = np.diag(k * problem.running_penalty * q**2)
    matrix -= problem.intensity / math.e * (np.eye(len(q), k=1) + np.eye(len(q), k=-1))
    log_v = np.log(expm(-matrix * time_left).sum(1))
    step = (log_v[:-1] - log_v[1:]) / k
    return Quotes(np.append(step + 1 / k, np.nan), np.append(np.nan, -step + 1 / k), log_v / k)


def test_closed_form_solves_the_differential_equation() -> None:
    """theta' of the Hamilton-Jacobi-Bellman equation, integrated independently; best quotes by a fine grid."""
    grid = np.linspace(0.01, 3, 6000)
    intensity = PROBLEM.intensity * np.exp(-PROBLEM.decay * grid)
    q = PROBLEM.inventories

    def best(gain: np.ndarray) -> np.ndarray:
        return np.asarray((intensity * (grid + gain[:, None])).max(1))

    def slope(_: float, theta: np.ndarray) -> np.ndarray:
        change = np.diff(theta)
        return np.append(best(change), 0) + np.append(0, best(-change)) - PROBLEM.running_penalty * q**2

    solved = solve_ivp(slope, (0, 0.2), np.zeros(len(q)), rtol=1e-8, atol=1e-8).y[:, -1]
    np.testing.assert_allclose(glft_quotes(PROBLEM, 0.2).value, solved, rtol=1e-5)


@pytest.mark.slow
def test_dynamic_programme_tends_to_the_closed_form() -> None:
    exact = glft_quotes(PROBLEM, 1.0)
    errors = [np.nanmax(np.abs(solve_quotes(PROBLEM, steps).bid[0] - exact.bid)) for steps in (200, 400, 800)]
    assert errors[0] > 1.8 * errors[1] > 3.2 * errors[2]  # first order in the length of a step
    assert errors[2] < 0.05


def test_no_other_quotes_are_better() -> None:
    problem = dataclasses.replace(PROBLEM, horizon=0.1)
    best = solve_quotes(problem, 50)
    np.testing.assert_allclose(evaluate_quotes(problem, best.bid, best.ask), best.value, rtol=1e-10)
    rng = np.random.default_rng(0)
    for _ in range(20):
        bid, ask = (quote + 0.05 * rng.standard_normal(quote.shape) for quote in (best.bid, best.ask))
        assert (evaluate_quotes(problem, bid, ask)[0] < best.value[0]).all()


def test_quotes_are_symmetric_and_skewed_against_the_inventory() -> None:
    quotes = glft_quotes(PROBLEM, 1.0)
    np.testing.assert_allclose(quotes.bid[:-1], quotes.ask[::-1][:-1])
    assert (np.diff(quotes.bid[:-1]) > 0).all()
    assert math.isnan(quotes.bid[-1])


def test_value_and_visits_match_a_simulation() -> None:
    problem = dataclasses.replace(PROBLEM, horizon=0.2, max_inventory=3)
    steps, runs = 40, 100_000
    quotes = solve_quotes(problem, steps)
    rng, dt = np.random.default_rng(1), problem.horizon / steps
    q, profit, visits = np.zeros(runs, int), np.zeros(runs), np.zeros(7)
    for j in range(steps):
        visits += np.bincount(q + 3, minlength=7) / runs / steps
        sides = []
        for table in (quotes.bid[j], quotes.ask[j]):
            delta = table[q + 3]
            chance = np.nan_to_num(1 - np.exp(-problem.intensity * np.exp(-problem.decay * delta) * dt))
            filled = rng.random(runs) < chance
            profit += np.where(filled, delta, 0.0)
            sides.append(filled)
        q = q + sides[0] - sides[1]
        profit -= problem.running_penalty * q**2 * dt
    assert profit.mean() == pytest.approx(quotes.value[0, 3], abs=4 * profit.std() / math.sqrt(runs))
    np.testing.assert_allclose(visited_inventories(problem, quotes.bid, quotes.ask), visits, atol=5e-3)
