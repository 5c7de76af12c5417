"""Simulated worlds in which a linear rule must fail, with what is attainable in them (agents-protocol-2.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from finrl_pod_app.prices.stored_prices import load_panel
from finrl_pod_app.setup.presets import preset
from scipy.interpolate import RegularGridInterpolator

from benchmarks.agents import accounts, cells, statistics
from benchmarks.harness.simulated_markets import planted, prices, without_edge
from finrl_pod.data.panel import make_panel
from finrl_pod.data.splits import make_splits
from finrl_pod.data.tensor import build_market, with_extra_feature
from finrl_pod.promotion.edge import SelectedPeriod, measure_edge
from finrl_pod.promotion.verdict import Edge
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.settings.algorithm_configs import AnalyticConfig
from finrl_pod.settings.run import EnvironmentConfig, GateConfig, MandateConfig, RunConfig, SplitConfig
from finrl_pod.types import Floats, MarketTensor, Tensor

LAG = 2  # a decision at t fills at t + 1 and earns the return to t + 2
ASSETS = 40
TRAIN = 3_000
TEST = 2_000
FIRST = 5  # first decision bar
HALF_LIFE = 20  # bars, of signals
EDGE = 0.1  # expected return for a signal of 1, in units of idiosyncratic risk
# own risk of a bar by regime; probability of a change
CALM = 0.01
TURBULENT = 0.03
SWITCH = 1 / 100
FACTOR = 0.002  # risk of a bar of the common factor
GRID = (0.35, 0.7, 1.4)  # scores of the known law, times its expected return
MEMBERS = 4
SAMPLES = 100_000
AGENT = AnalyticConfig(
    policy="equivariant", start="closed_form", horizon=32, learning_rate=0.03, exploration_noise=0.0, weight_decay=1.0
)
RULES = EnvironmentConfig(reward="mean_variance", risk_aversion=300.0, envs=16, group=1)


KINDS = ("regime", "interaction", "impact")
SEEDS = (1, 2, 3, 4, 5)
NO_EDGE_WORLDS = 40
NO_EDGE_RL_WORLDS = 8
PLANTED_WORLDS = 5


PLANTED_ASSETS = 300
PLANTED_CORRELATION = 0.03
PLANTED_HALF_LIFE = 21
CLIPS = (0.5, 1.0, 2.0, 5.0)


class World(NamedTuple):
    """A market and its law. law: [T, N], expected return of each decision in units of risk."""

    problem: accounts.Problem
    law: Floats


def market_of(close: Floats, features: Mapping[str, Floats]) -> MarketTensor:
    """A market of prices [T, N] with these features [T, N], normalised on the training bars."""
    bars, assets = close.shape
    times = pd.bdate_range("1970-01-01", periods=bars).to_numpy()
    symbols = tuple(f"S{i:03d}" for i in range(assets))
    panel = make_panel(times, symbols, {"close": close}, name="simulated", source="simulated")
    market = build_market(panel, ("return_1",), (FIRST, TRAIN - 1))
    for name, values in features.items():
        market = with_extra_feature(market, name, values, (FIRST, TRAIN - 1))
    full_normaliser = market.normaliser
    normaliser = dataclasses.replace(
        full_normaliser,
        feature_names=full_normaliser.feature_names[1:],
        mean=full_normaliser.mean[1:],
        std=full_normaliser.std[1:],
    )
    return dataclasses.replace(
        market,
        features=market.features[..., 1:].contiguous(),
        raw_features=market.raw_features[..., 1:].contiguous(),
        feature_names=market.feature_names[1:],
        normaliser=normaliser,
        first=FIRST,
    )


def problem_of(market: MarketTensor, rules: EnvironmentConfig, mandate: MandateConfig) -> accounts.Problem:
    """The market with its training bars and, after ten bars of embargo, its test bars."""
    return accounts.Problem(market, rules, mandate, (FIRST, TRAIN - 1), (TRAIN + 10, len(market.times) - 1))


def nonlinear(kind: str, seed: int, *, has_term: bool = False) -> World:
    """The world "regime" or "interaction". has_term: with the term that a linear rule lacks as a further feature."""
    rng = np.random.default_rng([seed, 43])
    bars = TRAIN + TEST
    signal, second_signal = (statistics.autoregressive(rng, bars, ASSETS, HALF_LIFE) for _ in range(2))
    noise = rng.normal(size=(bars, ASSETS))
    factor = rng.normal(0.0003, FACTOR, bars)
    if kind == "regime":
        turbulent = np.cumsum(rng.random(bars) < SWITCH) % 2 == 1
        risk = np.where(turbulent, TURBULENT, CALM)[:, None]
        law = np.where(turbulent, 0.0, 1.0)[:, None] * signal
        features = {"signal": signal, "risk": np.broadcast_to(np.log(risk), signal.shape)}
    else:
        risk = np.full((bars, 1), CALM)
        law = signal * second_signal
        features = {"signal": signal, "other": second_signal}
    logs = factor[:, None] + risk * noise
    logs[LAG:] += risk[:-LAG] * EDGE * law[:-LAG]
    logs[:LAG] = 0
    close = 100 * np.exp(np.cumsum(logs, 0))
    market = market_of(close, {**features, "term": law} if has_term else features)
    return World(problem_of(market, RULES, MandateConfig()), law)


class KnownLaw:
    """Actor with scores of k times a table [T, N], one account for each k. It knows the bar by counting decisions."""

    def __init__(self, table: Floats, factors: tuple[float, ...], first: int) -> None:
        assets = table.shape[1]
        self.spec = PolicySpec("linear", assets, 1, assets, (), action="tilt")
        self.table = torch.from_numpy(table)
        self.factors = torch.tensor(factors).view(-1, 1, 1, 1)
        self.bar = first

    def action(
        self,
        params: Mapping[str, Tensor],  # noqa: ARG002  the law is known
        features: Tensor,  # noqa: ARG002
        account: Tensor,  # noqa: ARG002
        tradable: Tensor | None,  # noqa: ARG002
    ) -> Tensor:
        """Scores [P, 1, 1, N]."""
        self.bar += 1
        return self.factors * self.table[self.bar - 1]


IMPACT_ASSETS = 20
IMPACT_HALF_LIFE = 5
IMPACT_RISK = 0.015
# A trade of a tenth of an equal share is this part of the volume of a bar; the limit is far beyond what is traded.
TENTH_OF_SHARE = 0.02
PARTICIPATION = 0.9
IMPACT_RULES = EnvironmentConfig(
    cost_bps=0.0, impact=1.0, participation=PARTICIPATION, reward="log_return", envs=16, group=1
)
AT_ONCE = MandateConfig(trade_speed=1.0)  # only scores can make trading slow
SIGNALS = np.linspace(-3, 3, 15)  # states of the dynamic program: signal, log of a holding over an equal share
HOLDINGS = np.linspace(-0.8, 0.8, 41)
AIMS = np.linspace(-0.49, 0.49, 41)
SCALES = (0, 1, 0.1, 0.2, 0.4)  # of the solved weights, the smaller ones for comparison
DISCOUNT = 0.99
SWEEPS = 500


def impact(seed: int) -> World:
    """The world "impact": a short-lived signal and an account whose trades move prices by the square-root law."""
    rng = np.random.default_rng([seed, 44])
    bars = TRAIN + TEST
    signal = statistics.autoregressive(rng, bars, IMPACT_ASSETS, IMPACT_HALF_LIFE)
    logs = rng.normal(0, FACTOR, bars)[:, None] + IMPACT_RISK * rng.normal(size=signal.shape)
    logs[LAG:] += IMPACT_RISK * EDGE * signal[:-LAG]
    logs[:LAG] = 0
    close = 100 * np.exp(np.cumsum(logs, 0))
    market = market_of(close, {"signal": signal})
    traded_value = 0.1 * IMPACT_RULES.cash / IMPACT_ASSETS / TENTH_OF_SHARE  # currency, in each asset and bar
    market = dataclasses.replace(
        market, volatility=torch.full_like(market.close, IMPACT_RISK), fill_volume=traded_value / market.fill
    )
    return World(problem_of(market, IMPACT_RULES, AT_ONCE), signal)


def best_aims() -> Floats:
    """Optimal holdings [S, H] after a decision, by signal and holding before it, from value iteration.

    An asset by itself: what a holding earns and costs relative to an equal share. The signal is AR(1), a holding moves
    with the asset.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(7)
    weights = weights / weights.sum()
    keep = 0.5 ** (1 / IMPACT_HALF_LIFE)
    next_signals = np.clip(keep * SIGNALS[:, None] + np.sqrt(1 - keep**2) * nodes, SIGNALS[0], SIGNALS[-1])  # [S, 7]
    next_holdings = np.clip(AIMS[:, None] + IMPACT_RISK * nodes, HOLDINGS[0], HOLDINGS[-1])  # [A, 7]
    points = np.stack(
        np.broadcast_arrays(next_signals[:, :, None, None], next_holdings[None, None]), -1
    )  # [S, 7, A, 7, 2]
    gains = IMPACT_RISK * EDGE * SIGNALS[:, None] * np.expm1(AIMS)  # [S, A]
    # c of the cost c |change|^1.5 of a change of a holding, in units of an equal share, relative to that share
    impact = float(IMPACT_RULES.impact * IMPACT_RISK * (TENTH_OF_SHARE / 0.1) ** 0.5)
    costs = impact * np.abs(np.exp(AIMS) - np.exp(HOLDINGS)[:, None]) ** 1.5  # [H, A]
    value = np.zeros((len(SIGNALS), len(HOLDINGS)))
    for _ in range(SWEEPS):
        expected_value = np.einsum(
            "siaj,i,j->sa", RegularGridInterpolator((SIGNALS, HOLDINGS), value)(points), weights, weights
        )
        total = (gains + DISCOUNT * expected_value)[:, None] - costs  # [S, H, A]
        value = total.max(2)
    return np.asarray(AIMS[total.argmax(2)])


class DynamicProgram:
    """Actor that aims at the best holding of each asset, given its signal and its holding."""

    def __init__(self, signal: Floats, first: int) -> None:
        assets = signal.shape[1]
        self.spec = PolicySpec("linear", assets, 1, assets, (), action="tilt")
        self.signal = signal
        self.bar = first
        self.aims = RegularGridInterpolator((SIGNALS, HOLDINGS), best_aims(), bounds_error=False, fill_value=None)

    def action(
        self,
        params: Mapping[str, Tensor],  # noqa: ARG002  nothing is trained
        features: Tensor,  # noqa: ARG002
        account: Tensor,
        tradable: Tensor | None,  # noqa: ARG002
    ) -> Tensor:
        """Scores [1, 1, 1, N]."""
        assets = self.signal.shape[1]
        holdings = account[0, 0, 0, 1 : 1 + assets].double().numpy() * assets
        state = np.stack([self.signal[self.bar], np.log(np.clip(holdings, 0.3, 3.0))], -1)
        state = np.clip(state, (SIGNALS[0], HOLDINGS[0]), (SIGNALS[-1], HOLDINGS[-1]))
        self.bar += 1
        aims = np.clip(self.aims(state) / AT_ONCE.tilt, -0.99, 0.99)
        return torch.from_numpy(np.arctanh(aims)).view(1, 1, 1, -1)


def information_ratio(account: Floats, base: Floats) -> float:
    """Information ratio of alpha of returns [T]."""
    return float(statistics.measures(account[None], base[None])["information_ratio"][0])


def beyond_linear(kind: str, seed: int, agent: AnalyticConfig = AGENT, samples: int = SAMPLES) -> dict[str, Any]:
    """Values of one seed of "regime" or "interaction": information ratios of every policy on test."""
    world = nonlinear(kind, seed)
    revealed_world = nonlinear(kind, seed, has_term=True)
    problem = world.problem
    start = accounts.closed_form_weights(world.problem)
    known_policy = accounts.Agents(KnownLaw(world.law, GRID, problem.test[0]), {"factor": torch.zeros(len(GRID))})
    members = accounts.train_agents(problem, agent, samples, MEMBERS, seed, start)
    base, closed_form = accounts.returns(problem, accounts.linear(problem, torch.stack([0 * start, start])))
    linear_agents = accounts.linear(revealed_world.problem, accounts.closed_form_weights(revealed_world.problem)[None])

    def ratios(agents: accounts.Agents, market: accounts.Problem = problem) -> list[float]:
        return [information_ratio(account, base) for account in accounts.returns(market, agents)]

    return {
        "attainable": max(ratios(known_policy)),
        "closed_form": information_ratio(closed_form, base),
        "revealed": ratios(linear_agents, revealed_world.problem)[0],
        "members": ratios(members),
        "rl": ratios(accounts.ensembles(members, MEMBERS))[0],
    }


def beyond_linear_impact(seed: int, agent: AnalyticConfig = AGENT, samples: int = SAMPLES) -> dict[str, Any]:
    """Values of one seed of "impact": mean active returns a year after costs of every policy on test."""
    world = impact(seed)
    problem = world.problem
    start = accounts.closed_form_weights(world.problem)
    known_policy = accounts.Agents(DynamicProgram(world.law, problem.test[0]), {"none": torch.zeros(1)})
    members = accounts.train_agents(problem, agent, samples, MEMBERS, seed, start)
    base, closed_form, *blind = accounts.returns(
        problem, accounts.linear(problem, torch.stack([k * start for k in SCALES]))
    )

    def mean(account: Floats) -> float:
        return statistics.YEAR * float((account - base).mean())

    return {
        "attainable": mean(accounts.returns(problem, known_policy)[0]),
        "closed_form": mean(closed_form),
        "best_linear": max(map(mean, blind)),
        "members": [mean(x) for x in accounts.returns(problem, members)],
        "rl": mean(accounts.returns(problem, accounts.ensembles(members, MEMBERS))[0]),
    }


def world_row(kind: str, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Row of one seed of a world: share of the attainable value that RL reaches, and all values."""
    values = beyond_linear_impact(seed) if kind == "impact" else beyond_linear(kind, seed)
    share = values["rl"] / values["attainable"]
    return statistics.single_record("rl_world", share, {**settings, "world": kind, "seed": seed, **values})


WORLD_TIMES = pd.bdate_range("1990-01-01", "2015-01-15").to_numpy()
# Ten years of training, two of validation, twelve of test.
WORLD_SPLITS = SplitConfig(("1991-01-01", "2000-12-31"), ("2001-01-01", "2002-12-31"), ("2003-01-01", "2014-12-31"))


def price_problem(returns: Floats, name: str) -> accounts.Problem:
    """The problem of the preset "laptop" on simulated returns [T, N] of `WORLD_TIMES`."""
    config = dataclasses.replace(preset("laptop"), splits=WORLD_SPLITS)
    symbols = tuple(f"S{i:03d}" for i in range(returns.shape[1]))
    panel = make_panel(WORLD_TIMES, symbols, {"close": prices(returns)}, name=name, source="simulated")
    return cells.data_of(config, panel).problem


def sample_returns() -> Floats:
    """Simple returns [T, N] of the sample, its first 26 years."""
    close = load_panel(RunConfig()).close
    return np.asarray(close[1 : 26 * statistics.YEAR] / close[: 26 * statistics.YEAR - 1] - 1)


def no_edge_row(seed: int, settings: Mapping[str, Any], *, rl: bool = False) -> dict[str, Any]:
    """Row of a world without an edge: Sharpe difference of the closed form to the base, or of RL to the closed form."""
    problem = price_problem(without_edge(sample_returns(), len(WORLD_TIMES), 5_000 + seed), f"no-edge-{seed}")
    start = accounts.closed_form_weights(problem)
    base, account = accounts.returns(problem, accounts.linear(problem, torch.stack([0 * start, start])))
    if not rl:
        value = float(statistics.measures(account[None], base[None])["sharpe_difference"][0])
        return statistics.record(
            "no_edge_difference", value, value, value, {**settings, "agent": "closed form", "seed": seed}
        )
    agent, envs, group, samples = cells.RL["analytic"]
    rules = dataclasses.replace(problem.environment, envs=envs, group=group)
    members = accounts.train_agents(problem._replace(environment=rules), agent, samples, cells.SEEDS, seed, start)
    member_returns = accounts.returns(problem, members)
    differences = statistics.measures(member_returns, np.broadcast_to(account, member_returns.shape))[
        "sharpe_difference"
    ]
    together = accounts.returns(problem, accounts.ensembles(members, cells.SEEDS))
    ensemble = float(statistics.measures(together, account[None])["sharpe_difference"][0])
    config = {**settings, "seed": seed, "seeds": cells.SEEDS, "ensemble": ensemble}
    return statistics.record(
        "rl_no_edge_world", float(differences.mean()), float(differences.min()), float(differences.max()), config
    )


def planted_row(seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Row of a planted linear signal: information ratio of the closed form relative to the best clip(k signal)."""
    persistence = 0.5 ** (1 / PLANTED_HALF_LIFE)
    weight = (1 - persistence**PLANTED_HALF_LIFE) / (1 - persistence) / np.sqrt(PLANTED_HALF_LIFE)
    bars = len(WORLD_TIMES)
    world = planted(
        seed, bars, PLANTED_ASSETS, persistence=persistence, information_coefficient=PLANTED_CORRELATION / weight
    )
    rng = np.random.default_rng([seed, 45])
    noise = {f"noise_{i}": statistics.autoregressive(rng, bars, PLANTED_ASSETS, PLANTED_HALF_LIFE) for i in range(9)}
    market = market_of(world.close, {"signal": world.signal, **noise})
    config = preset("laptop")
    problem = accounts.Problem(market, config.environment, config.mandate, (FIRST, TRAIN - 1), (TRAIN + 10, bars - 1))
    start = accounts.closed_form_weights(problem)
    base, account = accounts.returns(problem, accounts.linear(problem, torch.stack([0 * start, start])))
    best = 0.0
    for k in CLIPS:
        law = KnownLaw(np.arctanh(np.clip(k * world.signal, -0.999, 0.999)), (1.0,), problem.test[0])
        clipped_returns = accounts.returns(problem, accounts.Agents(law, {"factor": torch.ones(1)}))[0]
        best = max(best, information_ratio(clipped_returns, base))
    value = information_ratio(account, base) / best
    return statistics.single_record("planted_capture", value, {**settings, "seed": seed, "attainable": best})


NULL_WORLDS = {"equal_means": 0.0, "beta_priced_8": 0.08, "beta_priced_24": 0.24}  # world -> price of beta a year
NULL_COUNT = 100
NULL_BATCH = 25
NULL_MEAN = 0.08


def null_row(world: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Row of worlds without skill: how many of their solved champions the gate rule would promote."""
    price = NULL_WORLDS[world]
    history = sample_returns()
    market = history.mean(1) - history.mean()
    beta = (history * market[:, None]).mean(0) / (market**2).mean()
    means = (beta * price if price else np.full(len(beta), NULL_MEAN)) / statistics.YEAR
    edges = []
    for batch in range(NULL_COUNT // NULL_BATCH):
        rng = np.random.default_rng([batch, 46, *world.encode()])
        for _ in range(NULL_BATCH):
            days = rng.integers(0, len(history), len(WORLD_TIMES))
            edges.append(solved_edge(price_problem(history[days] - history.mean(0) + means, "null")))
    cases = [edge.case for edge in edges]
    promotions = cases.count("shown")
    counts = {case: cases.count(case) for case in sorted(set(cases))}
    config = {**settings, "world": world, "promoted": promotions, "worlds": NULL_COUNT, "cases": counts}
    config |= {"mean_beta": float(np.mean([edge.beta for edge in edges])), "algorithm": "closed_form"}
    return statistics.single_record("null_world_trained", promotions / NULL_COUNT, config)


def solved_edge(problem: accounts.Problem) -> Edge:
    """The edge of the solved champion over the base, on test and validation."""
    start = accounts.closed_form_weights(problem)
    agents = accounts.linear(problem, torch.stack([0 * start, start]))
    base, account = accounts.returns(problem, agents)
    validation = make_splits(WORLD_TIMES, WORLD_SPLITS).validation
    selection_base, selection = accounts.returns(problem, agents, (validation.first, validation.last))
    active = selection - selection_base
    gate = GateConfig()
    return measure_edge(
        account,
        base,
        np.zeros(len(base)),
        level=gate.significance_level,
        minimum=gate.minimum_edge,
        validation=SelectedPeriod(active, selection_base, active[:, None]),
    )
