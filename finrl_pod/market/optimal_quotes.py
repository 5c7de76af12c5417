"""Optimal quotes of a market maker with a limited inventory, in closed form and by dynamic programming.

Orders hit a quote at distance delta from the mid-price with intensity A exp(-k delta) on each side. `glft_quotes` is
the exact solution of Gueant, Lehalle and Fernandez-Tapia (2013) in continuous time; `solve_quotes` the optimum where
the maker quotes for steps of length dt and each side fills once a step at most, with probability
1 - exp(-A exp(-k delta) dt). Two objectives: exponential utility with risk aversion gamma, or expected profit less a
running penalty phi q^2.

Inventories are -Q..Q, index q + Q. A maker at Q does not bid, at -Q does not ask: those quotes are NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from finrl_pod.errors import ConfigError
from finrl_pod.types import Floats

NEWTON_STEPS = 50
SWEEPS = 4  # both sides of a step interact through the rare event that both fill
TOLERANCE = 1e-12


@dataclass(frozen=True)
class MakerProblem:
    """The problem of a market maker.

    intensity, decay: A (orders per unit of time) and k (per price). volatility: standard deviation of the mid-price
    over one unit of time.
    risk_aversion: gamma of exponential utility, or 0 for the additive objective with `running_penalty` phi (currency
    per unit of time and squared share).
    """

    intensity: float
    decay: float
    volatility: float
    horizon: float
    max_inventory: int
    risk_aversion: float = 0.0
    running_penalty: float = 0.0

    def __post_init__(self) -> None:
        if self.risk_aversion and self.running_penalty:
            raise ConfigError("a maker has a risk_aversion or a running_penalty, not both; set one of them to 0")

    @property
    def inventories(self) -> Floats:
        """-Q..Q."""
        return np.arange(-self.max_inventory, self.max_inventory + 1, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Quotes:
    """Distances of bid and ask from the mid-price [..., 2Q + 1], and the value [..., 2Q + 1] at the same times.

    value: certainty equivalent of the remaining profit, in currency.
    """

    bid: Floats
    ask: Floats
    value: Floats


def glft_quotes(problem: MakerProblem, time_left: float) -> Quotes:
    """Optimal quotes [2Q + 1] in continuous time with `time_left` to the horizon.

    v(t) = exp(-M (T - t)) 1 with M tridiagonal; delta_bid(q) = ln(v_q / v_(q+1)) / k + ln(1 + gamma / k) / gamma.
    """
    k = problem.decay
    gamma = problem.risk_aversion
    q = problem.inventories
    if gamma:
        diagonal = k * gamma * problem.volatility**2 * q**2 / 2
        coupling = problem.intensity * (1 + gamma / k) ** -(1 + k / gamma)
        margin = math.log1p(gamma / k) / gamma
    else:
        diagonal = k * problem.running_penalty * q**2
        coupling = problem.intensity / math.e
        margin = 1 / k
    matrix = np.diag(diagonal) - coupling * (np.eye(len(q), k=1) + np.eye(len(q), k=-1))
    # M is symmetric: exp(-M t) 1 by its eigenvectors, with the largest exponent taken out against overflow.
    rates, vectors = np.linalg.eigh(matrix)
    v = vectors @ (np.exp(-(rates - rates[0]) * time_left) * vectors.sum(0))
    log_v = np.log(v) - rates[0] * time_left
    step = (log_v[:-1] - log_v[1:]) / k
    return Quotes(np.append(step + margin, np.nan), np.append(np.nan, -step + margin), log_v / k)


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


def best_constant_quote(problem: MakerProblem, steps: int) -> tuple[float, float]:
    """The best distance that is the same on both sides, at all times and inventories, and its value at inventory 0."""

    def value(delta: float) -> float:
        flat = np.full((steps, len(problem.inventories)), delta)
        return float(evaluate_quotes(problem, flat, flat)[0, problem.max_inventory])

    low = 0.0
    high = 5 / problem.decay
    ratio = (math.sqrt(5) - 1) / 2
    while high - low > 1e-2 / problem.decay:  # golden section
        left = high - ratio * (high - low)
        right = low + ratio * (high - low)
        low, high = (low, right) if value(left) > value(right) else (left, high)
    return (low + high) / 2, value((low + high) / 2)


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
    rate = problem.running_penalty or problem.risk_aversion * problem.volatility**2 / 2
    return value - rate * problem.inventories**2 * dt


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
    return _certainty_equivalent(problem, chances, outcomes)


def _certainty_equivalent(problem: MakerProblem, chances: tuple[Floats, ...], outcomes: tuple[Floats, ...]) -> Floats:
    gamma = problem.risk_aversion
    if not gamma:
        return np.asarray(sum(p * x for p, x in zip(chances, outcomes, strict=True)))
    base = outcomes[0]  # taken out of the exponent against overflow
    total = sum(p * np.exp(-gamma * (x - base)) for p, x in zip(chances, outcomes, strict=True))
    return np.asarray(base - np.log(total) / gamma)


def _best_side(
    problem: MakerProblem, next_value: Floats, quotes: tuple[Floats, Floats], side: int, dt: float
) -> Floats:
    """Best quote [2Q + 1] of a side (0 bid, 1 ask), given the quote of the other side.

    A fill is worth delta + gain, where gain is the difference of values with and without it. With x = A exp(-k delta)
    dt the first-order condition is delta + gain = ln(1 + gamma f / k) / gamma, f = (exp(x) - 1) / x. In small steps f
    tends to 1 + x / 2.
    """
    k = problem.decay
    gamma = problem.risk_aversion
    other_side = 1 - side
    sells = _fill_probabilities(problem, quotes, dt)[other_side]
    other_quote = np.nan_to_num(quotes[other_side])
    side_values = (np.append(next_value[1:], 0.0), np.append(0.0, next_value[:-1]))  # after a fill of the bid, the ask
    chances = (1 - sells, sells)
    with_fill = _certainty_equivalent(problem, chances, (side_values[side], next_value + other_quote))
    value_without = _certainty_equivalent(problem, chances, (next_value, side_values[other_side] + other_quote))
    gain = with_fill - value_without
    delta = 1 / k - gain
    for _ in range(NEWTON_STEPS):
        x = np.minimum(problem.intensity * np.exp(-k * delta) * dt, 50.0)
        f = np.expm1(x) / x
        slope = (x * np.exp(x) - np.expm1(x)) / x**2  # f'
        margin, by_f = (np.log1p(gamma * f / k) / gamma, 1 / (k + gamma * f)) if gamma else (f / k, 1 / k)
        change = (delta + gain - margin) / (1 + by_f * slope * k * x)
        delta = delta - change
        if np.max(np.abs(change)) < TOLERANCE:
            break
    return np.asarray(delta)
