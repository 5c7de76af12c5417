"""Error rates of the gate rule for an edge on simulated returns, by agents-protocol-gate.md.

`null_world` rows count promotions of champions without skill, `power` rows count accounts with a known
information ratio. Both use the rule of the product, `finrl_pod.promotion.edge.measure_edge`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.agents import statistics
from benchmarks.harness.rows import Record
from finrl_pod.evaluate.intervals import binomial_interval
from finrl_pod.promotion.edge import SelectedPeriod, measure_edge
from finrl_pod.promotion.verdict import Edge
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import Floats

YEAR = 252
# bars
VALIDATION = 4 * YEAR
TEST = 8 * YEAR
TRIALS = 8
MEMBERS = 4
CORRELATION = 0.6
BASE_RISK = 0.16 / math.sqrt(YEAR)
ACTIVE_RISK = 0.02 / math.sqrt(YEAR)
PAIRS = 2_000
ACCOUNTS = 4_000
DRAWS = 2_000
BETA_SPREAD = 0.04
DRIFT = 0.1
LONGEST_PERIOD = 1_000
SHORTEST_PERIOD = 250
# of GARCH(1, 1)
SHOCK = 0.08
PERSISTENCE = 0.90
BURN_IN = 500
RATIOS = (0.5, 1.0, 2.0)
YEARS = (4, 8, 12)
GATE = GateConfig()


class World(NamedTuple):
    """A world without skill. market: return of the base per year in excess of cash. beta: market beta of the trials.

    is_priced: expected returns are beta times the market, else all are equal. kind: deviation from these constants.
    """

    market: float = 0.08
    beta: float = 1.04
    is_priced: bool = True
    kind: str = ""


WORLDS: Mapping[str, World] = {
    "equal_means": World(beta=1.0, is_priced=False, kind="random beta"),
    "beta_priced_8": World(0.08),
    "beta_priced_12": World(0.12),
    "beta_priced_24": World(0.24),
    "beta_0.90": World(beta=0.90, is_priced=False),
    "beta_0.96": World(beta=0.96, is_priced=False),
    "beta_1.04": World(beta=1.04),
    "beta_1.10": World(beta=1.10),
    "drifting_beta": World(beta=1.0, kind="drift"),
    "volatility_clusters": World(beta=1.0, is_priced=False, kind="garch"),
    "negative_base": World(market=-0.08, beta=0.96),
}


def null_world_row(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Row of a world without skill: how many champions the rule promotes."""
    rng = np.random.default_rng(list(WORLDS).index(name))
    edges = [judge_pair(*simulate_pair(WORLDS[name], rng)) for _ in range(PAIRS)]
    cases = [edge.case for edge in edges]
    promotions = cases.count("shown")
    config = {
        "world": name,
        "worlds": PAIRS,
        "promoted": promotions,
        "cases": {case: cases.count(case) for case in sorted(set(cases))},
        "passed_active": sum(edge.p_active <= edge.level for edge in edges),
        "passed_alpha": sum(edge.p_alpha <= edge.level for edge in edges),
        "mean_beta": float(np.mean([edge.beta for edge in edges])),
    }
    return _record("null_world", promotions, PAIRS, {**settings, **config})


def power_row(ratio: float, years: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Row of accounts with an information ratio: how many the rule promotes on a test of some years alone."""
    rng = np.random.default_rng([RATIOS.index(ratio), years, 1])
    promotions = 0
    for _ in range(ACCOUNTS):
        base = 0.08 / YEAR + BASE_RISK * rng.normal(size=years * YEAR)
        account = base + ACTIVE_RISK * (ratio / math.sqrt(YEAR) + rng.normal(size=len(base)))
        promotions += _judge(account, base).case == "shown"
    config = {"information_ratio": ratio, "years": years, "part": "test", "accounts": ACCOUNTS, "promoted": promotions}
    return _record("power", promotions, ACCOUNTS, {**settings, **config})


def simulate_pair(world: World, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Excess returns of the base [T] and of the trials [T, N], validation before test."""
    bars = VALIDATION + TEST
    scale = _garch(rng, bars) if world.kind == "garch" else np.ones(bars)
    shocks = scale * BASE_RISK * rng.normal(size=bars)
    common_noise = rng.normal(size=(bars, 1))
    trial_noise = rng.normal(size=(bars, TRIALS))
    noise = math.sqrt(CORRELATION) * common_noise + math.sqrt(1 - CORRELATION) * trial_noise
    noise = ACTIVE_RISK * noise * scale[:, None]
    beta = np.full((1, TRIALS), world.beta)
    if world.kind == "random beta":
        beta = rng.normal(world.beta, BETA_SPREAD, (1, TRIALS))
    if world.kind == "drift":
        period = rng.uniform(SHORTEST_PERIOD, LONGEST_PERIOD)
        phase = rng.uniform(0, 2 * math.pi)
        beta = world.beta + DRIFT * np.sin(2 * math.pi * np.arange(bars)[:, None] / period + phase)
    mean = world.market / YEAR
    base = mean + shocks
    expected_return = beta * mean if world.is_priced else mean
    return base, expected_return + beta * shocks[:, None] + noise


def judge_pair(base: Floats, trials: Floats) -> Edge:
    """Select a champion from trials [T, N] on validation and judge it on both periods. base: [T]."""
    validation = trials[:VALIDATION]
    members = np.argsort(-validation.mean(0) / validation.std(0))[:MEMBERS]
    champion = trials[:, members].mean(1)
    period = SelectedPeriod(
        champion[:VALIDATION] - base[:VALIDATION], base[:VALIDATION], validation - base[:VALIDATION, None], MEMBERS
    )
    return _judge(champion[VALIDATION:], base[VALIDATION:], period)


def _judge(account: Floats, base: Floats, validation: SelectedPeriod | None = None) -> Edge:
    return measure_edge(
        account,
        base,
        np.zeros(len(base)),
        level=GATE.significance_level,
        minimum=GATE.minimum_edge,
        validation=validation,
        draws=DRAWS,
    )


def _garch(rng: np.random.Generator, bars: int) -> Floats:
    """Volatility [bars] of a GARCH(1, 1) with normal shocks and an unconditional variance of 1."""
    squares = rng.normal(size=BURN_IN + bars) ** 2
    variance = 1.0
    path = np.empty(BURN_IN + bars)
    for t, square in enumerate(squares):
        path[t] = variance
        variance = 1 - SHOCK - PERSISTENCE + (SHOCK * square + PERSISTENCE) * variance
    return np.sqrt(path[BURN_IN:])


def _record(name: str, promotions: int, count: int, config: Mapping[str, Any]) -> Record:
    low, high = binomial_interval(promotions, count)
    config = {**config, "interval": "95% Clopper-Pearson", "level": GATE.significance_level}
    return statistics.record(name, promotions / count, low, high, config, "share promoted")
