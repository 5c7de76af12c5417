"""Optimal quotes of a market maker with a limited inventory, by dynamic programming.

Orders hit a quote at distance delta from the mid-price with intensity A exp(-k delta) on each side. The maker quotes
for steps of length dt, and each side fills once a step at most, with probability 1 - exp(-A exp(-k delta) dt). It
maximises expected profit less a running penalty phi q^2.

Inventories are -Q..Q, index q + Q. A maker at Q does not bid, at -Q does not ask: those quotes are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from finrl_pod.types import Floats

NEWTON_STEPS = 50
SWEEPS = 4  # both sides of a step interact through the rare event that both fill
TOLERANCE = 1e-12


@dataclass(frozen=True)
class MakerProblem:
    """The problem of a market maker.

    intensity, decay: A (orders per unit of time) and k (per price). running_penalty: phi, currency per unit of time and
    squared share.
    """

    intensity: float
    decay: float
    horizon: float
    max_inventory: int
    running_penalty: float = 0.0

    @property
    def inventories(self) -> Floats:
        """-Q..Q."""
        return np.arange(-self.max_inventory, self.max_inventory + 1, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Quotes:
    """Distances of bid and ask from the mid-price [..., 2Q + 1], and the value [..., 2Q + 1] at the same times.

    value: expected remaining profit less penalties, in currency.
    """

    bid: Floats
    ask: Floats
    value: Floats


def solve_quotes(problem: MakerProblem, steps: int) -> Quotes:
    """Optimal quotes [N, 2Q + 1] of every step, and the value [N + 1, 2Q + 1] before it and at the end."""
    dt = problem.horizon / steps
    n = len(problem.inventories)
    value = np.zeros((steps + 1, n))
    bid = np.full((steps, n), np.nan)
    ask = np.full((steps, n), np.nan)
    start = np.full(n, 1 / problem.decay)
    quotes = (start, start)
    for j in range(steps - 1, -1, -1):
        next_value = _value_after_fills(problem, value[j + 1], dt)
        for _ in range(SWEEPS):
            quotes = (_best_side(problem, next_value, quotes, 0, dt), quotes[1])
            quotes = (quotes[0], _best_side(problem, next_value, quotes, 1, dt))
        bid[j, :-1] = quotes[0][:-1]
        ask[j, 1:] = quotes[1][1:]
        value[j] = _expected_value(problem, next_value, quotes, dt)
    return Quotes(bid, ask, value)


def evaluate_quotes(problem: MakerProblem, bid: Floats, ask: Floats) -> Floats:
    """Value [N + 1, 2Q + 1] of given quotes [N, 2Q + 1], exactly; NaN at the limits is ignored."""
    steps = len(bid)
    dt = problem.horizon / steps
    value = np.zeros((steps + 1, len(problem.inventories)))
    for j in range(steps - 1, -1, -1):
        value[j] = _expected_value(problem, _value_after_fills(problem, value[j + 1], dt), (bid[j], ask[j]), dt)
    return value


def visited_inventories(problem: MakerProblem, bid: Floats, ask: Floats) -> Floats:
    """Share of time [2Q + 1] spent at each inventory with quotes [N, 2Q + 1], from inventory 0 at the start."""
    dt = problem.horizon / len(bid)
    share = np.zeros(len(problem.inventories))
    inventory_shares = np.zeros_like(share)
    inventory_shares[problem.max_inventory] = 1.0
    for j in range(len(bid)):
        share += inventory_shares
        buys, sells = _fill_probabilities(problem, (bid[j], ask[j]), dt)
        next_shares = inventory_shares * (buys * sells + (1 - buys) * (1 - sells))
        next_shares[1:] += (inventory_shares * buys * (1 - sells))[:-1]
        next_shares[:-1] += (inventory_shares * (1 - buys) * sells)[1:]
        inventory_shares = next_shares
    return share / len(bid)


def _value_after_fills(problem: MakerProblem, value: Floats, dt: float) -> Floats:
    """Value after the fills of a step: value of the next step less the cost of holding the inventory for dt."""
    return value - problem.running_penalty * problem.inventories**2 * dt


def _fill_probabilities(problem: MakerProblem, quotes: tuple[Floats, Floats], dt: float) -> tuple[Floats, Floats]:
    buys, sells = (-np.expm1(-problem.intensity * np.exp(-problem.decay * quote) * dt) for quote in quotes)
    buys[-1] = 0.0
    sells[0] = 0.0
    return buys, sells


def _expected_value(problem: MakerProblem, next_value: Floats, quotes: tuple[Floats, Floats], dt: float) -> Floats:
    """Value [2Q + 1] of a step with these quotes, from the values `next_value` [2Q + 1] after it."""
    buys, sells = _fill_probabilities(problem, quotes, dt)
    bid, ask = (np.nan_to_num(quote) for quote in quotes)
    value_above = np.append(next_value[1:], 0.0)
    value_below = np.append(0.0, next_value[:-1])
    chances = ((1 - buys) * (1 - sells), buys * (1 - sells), (1 - buys) * sells, buys * sells)
    outcomes = (next_value, value_above + bid, value_below + ask, next_value + bid + ask)
    return np.asarray(sum(p * x for p, x in zip(chances, outcomes, strict=True)))


def _best_side(
    problem: MakerProblem, next_value: Floats, quotes: tuple[Floats, Floats], side: int, dt: float
) -> Floats:
    """Best quote [2Q + 1] of a side (0 bid, 1 ask), given the quote of the other side.

    A fill is worth delta + gain, where gain is the difference of values with and without it. With x = A exp(-k delta)
    dt the first-order condition is delta + gain = f / k, f = (exp(x) - 1) / x. In small steps f tends to 1 + x / 2.
    """
    k = problem.decay
    other_side = 1 - side
    sells = _fill_probabilities(problem, quotes, dt)[other_side]
    other_quote = np.nan_to_num(quotes[other_side])
    side_values = (np.append(next_value[1:], 0.0), np.append(0.0, next_value[:-1]))  # after a fill of the bid, the ask
    with_fill = (1 - sells) * side_values[side] + sells * (next_value + other_quote)
    value_without = (1 - sells) * next_value + sells * (side_values[other_side] + other_quote)
    gain = with_fill - value_without
    delta = 1 / k - gain
    for _ in range(NEWTON_STEPS):
        x = np.minimum(problem.intensity * np.exp(-k * delta) * dt, 50.0)
        f = np.expm1(x) / x
        slope = (x * np.exp(x) - np.expm1(x)) / x**2  # f'
        change = (delta + gain - f / k) / (1 + 1 / k * slope * k * x)
        delta = delta - change
        if np.max(np.abs(change)) < TOLERANCE:
            break
    return np.asarray(delta)
