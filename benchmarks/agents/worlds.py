"""Simulated worlds in which a linear rule must fail, with what is attainable in them (agents-protocol-2.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from finrl_pod_app.prices.panels import load_panel
from finrl_pod_app.setup.presets import preset
from scipy.interpolate import RegularGridInterpolator

from benchmarks.agents import accounts, statistics
from benchmarks.agents import cells as agent_cells
from benchmarks.harness.simulated_markets import planted, prices, without_edge
from finrl_pod.data.panel import make_panel
from finrl_pod.data.splits import make_splits
from finrl_pod.data.tensor import build_market, with_extra_feature
from finrl_pod.promotion.edge import Edge, measure_edge
from finrl_pod.promotion.edge_significance import SelectedPeriod
from finrl_pod.rl.acting.closed_form import TiltReturns, scaled, solve
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.settings.algorithm_configs import AnalyticConfig
from finrl_pod.settings.run import EnvironmentConfig, GateConfig, MandateConfig, RunConfig, SplitConfig
from finrl_pod.types import Floats, MarketTensor, Tensor

LAG = 2  # a decision at t fills at t + 1 and earns the return to t + 2
ASSETS, TRAIN, TEST = 40, 3_000, 2_000
FIRST = 5  # first decision bar
HALF_LIFE = 20  # bars, of signals
EDGE = 0.1  # expected return for a signal of 1, in units of an asset's own risk
CALM, TURBULENT, SWITCH = 0.01, 0.03, 1 / 100  # own risk of a bar by regime; probability of a change
FACTOR = 0.002  # risk of a bar of the common factor
GRID = (0.35, 0.7, 1.4)  # scores of the known law, times its expected return
MEMBERS, SAMPLES = 4, 100_000
AGENT = AnalyticConfig(
    policy="equivariant", start="closed_form", horizon=32, learning_rate=0.03, exploration_noise=0.0, weight_decay=1.0
)
RULES = EnvironmentConfig(reward="mean_variance", risk_aversion=300.0, envs=16, group=1)


KINDS = ("regime", "interaction", "impact")
SEEDS = (1, 2, 3, 4, 5)
NO_EDGE_WORLDS, NO_EDGE_RL_WORLDS, PLANTED_WORLDS = 40, 8, 5


PLANTED_ASSETS, PLANTED_CORRELATION, PLANTED_HALF_LIFE = 300, 0.03, 21
CLIPS = (0.5, 1.0, 2.0, 5.0)


class World(NamedTuple):
    """A market and its law. law: [T, N], expected return of each bar's decision in units of risk."""

    problem: accounts.Problem
    law: Floats


def autoregressive(rng: np.random.Generator, bars: int, assets: int, half_life: float) -> Floats:
    """AR(1) series [T, N] of unit variance."""
    keep = 0.5 ** (1 / half_life)
    shocks = rng.normal(size=(bars, assets)) * np.sqrt(1 - keep**2)
    shocks[0] /= np.sqrt(1 - keep**2)
    values = np.empty((bars, assets))
    values[0] = shocks[0]
    for t in range(1, bars):
        values[t] = keep * values[t - 1] + shocks[t]
    return values


def market_of(close: Floats, features: Mapping[str, Floats]) -> MarketTensor:
    """A market of prices [T, N] with these features [T, N], normalised on the training bars."""
    bars, assets = close.shape
    times = pd.bdate_range("1970-01-01", periods=bars).to_numpy()
    symbols = tuple(f"S{i:03d}" for i in range(assets))
    panel = make_panel(times, symbols, {"close": close}, name="simulated", source="simulated")
    market = build_market(panel, ("return_1",), (FIRST, TRAIN - 1))
    for name, values in features.items():
        market = with_extra_feature(market, name, values, (FIRST, TRAIN - 1))
    whole = market.normaliser
    normaliser = dataclasses.replace(
        whole, feature_names=whole.feature_names[1:], mean=whole.mean[1:], std=whole.std[1:]
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


def nonlinear(kind: str, seed: int, *, revealed: bool = False) -> World:
    """The world "regime" or "interaction". revealed: with the term that a linear rule lacks as a further feature."""
    rng = np.random.default_rng([seed, 43])
    bars = TRAIN + TEST
    signal, other = (autoregressive(rng, bars, ASSETS, HALF_LIFE) for _ in range(2))
    noise, factor = rng.normal(size=(bars, ASSETS)), rng.normal(0.0003, FACTOR, bars)
    if kind == "regime":
        turbulent = np.cumsum(rng.random(bars) < SWITCH) % 2 == 1
        risk, law = np.where(turbulent, TURBULENT, CALM)[:, None], np.where(turbulent, 0.0, 1.0)[:, None] * signal
        features = {"signal": signal, "risk": np.broadcast_to(np.log(risk), signal.shape)}
    else:
        risk, law = np.full((bars, 1), CALM), signal * other
        features = {"signal": signal, "other": other}
    logs = factor[:, None] + risk * noise
    logs[LAG:] += risk[:-LAG] * EDGE * law[:-LAG]
    logs[:LAG] = 0
    close = 100 * np.exp(np.cumsum(logs, 0))
    market = market_of(close, {**features, "term": law} if revealed else features)
    return World(problem_of(market, RULES, MandateConfig()), law)


class KnownLaw:
    """Actor with scores of k times a table [T, N], one account for each k. It knows the bar by counting decisions."""

    def __init__(self, table: Floats, factors: tuple[float, ...], first: int) -> None:
        assets = table.shape[1]
        self.spec = PolicySpec("linear", assets, 1, assets, (), action="tilt")
        self.table, self.factors, self.bar = torch.from_numpy(table), torch.tensor(factors).view(-1, 1, 1, 1), first

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


# ---------------------------------------------------------------------- impact

IMPACT_ASSETS, IMPACT_HALF_LIFE, IMPACT_RISK = 20, 5, 0.015
# A trade of a tenth of an equal share is this part of a bar's volume; the limit is far beyond what is traded.
TENTH_OF_SHARE, PARTICIPATION = 0.02, 0.9
IMPACT_RULES = EnvironmentConfig(
    cost_bps=0.0, impact=1.0, participation=PARTICIPATION, reward="log_return", envs=16, group=1
)
AT_ONCE = MandateConfig(trade_speed=1.0)  # only scores can make trading slow
SIGNALS = np.linspace(-3, 3, 15)  # states of the dynamic program: signal, log of a holding over an equal share
HOLDINGS, AIMS = np.linspace(-0.8, 0.8, 41), np.linspace(-0.49, 0.49, 41)
SCALES = (0, 1, 0.1, 0.2, 0.4)  # of the solved weights, the smaller ones for comparison
DISCOUNT, SWEEPS = 0.99, 500


def impact(seed: int) -> World:
    """The world "impact": a short-lived signal and an account whose trades move prices by the square-root law."""
    rng = np.random.default_rng([seed, 44])
    bars = TRAIN + TEST
    signal = autoregressive(rng, bars, IMPACT_ASSETS, IMPACT_HALF_LIFE)
    logs = rng.normal(0, FACTOR, bars)[:, None] + IMPACT_RISK * rng.normal(size=signal.shape)
    logs[LAG:] += IMPACT_RISK * EDGE * signal[:-LAG]
    logs[:LAG] = 0
    close = 100 * np.exp(np.cumsum(logs, 0))
    market = market_of(close, {"signal": signal})
    traded = 0.1 * IMPACT_RULES.cash / IMPACT_ASSETS / TENTH_OF_SHARE  # currency, in each asset and bar
    market = dataclasses.replace(
        market, volatility=torch.full_like(market.close, IMPACT_RISK), fill_volume=traded / market.fill
    )
    return World(problem_of(market, IMPACT_RULES, AT_ONCE), signal)


def impact_cost() -> float:
    """c of the cost c |change|^1.5 of a change of a holding, in units of an equal share, relative to that share."""
    return float(IMPACT_RULES.impact * IMPACT_RISK * (TENTH_OF_SHARE / 0.1) ** 0.5)


def best_aims() -> Floats:
    """Optimal holdings [S, H] after a decision, by signal and holding before it, from value iteration.

    An asset by itself: what a holding earns and costs relative to an equal share. The signal is AR(1), a holding moves
    with the asset's own return.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(7)
    weights = weights / weights.sum()
    keep = 0.5 ** (1 / IMPACT_HALF_LIFE)
    later = np.clip(keep * SIGNALS[:, None] + np.sqrt(1 - keep**2) * nodes, SIGNALS[0], SIGNALS[-1])  # [S, 7]
    moved = np.clip(AIMS[:, None] + IMPACT_RISK * nodes, HOLDINGS[0], HOLDINGS[-1])  # [A, 7]
    points = np.stack(np.broadcast_arrays(later[:, :, None, None], moved[None, None]), -1)  # [S, 7, A, 7, 2]
    earned = IMPACT_RISK * EDGE * SIGNALS[:, None] * np.expm1(AIMS)  # [S, A]
    paid = impact_cost() * np.abs(np.exp(AIMS) - np.exp(HOLDINGS)[:, None]) ** 1.5  # [H, A]
    value = np.zeros((len(SIGNALS), len(HOLDINGS)))
    for _ in range(SWEEPS):
        expected = np.einsum(
            "siaj,i,j->sa", RegularGridInterpolator((SIGNALS, HOLDINGS), value)(points), weights, weights
        )
        total = (earned + DISCOUNT * expected)[:, None] - paid  # [S, H, A]
        value = total.max(2)
    return np.asarray(AIMS[total.argmax(2)])


class DynamicProgram:
    """Actor that aims at the best holding of each asset, given its signal and its holding."""

    def __init__(self, signal: Floats, first: int) -> None:
        assets = signal.shape[1]
        self.spec = PolicySpec("linear", assets, 1, assets, (), action="tilt")
        self.signal, self.bar = signal, first
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
        held = account[0, 0, 0, 1 : 1 + assets].double().numpy() * assets
        state = np.stack([self.signal[self.bar], np.log(np.clip(held, 0.3, 3.0))], -1)
        state = np.clip(state, (SIGNALS[0], HOLDINGS[0]), (SIGNALS[-1], HOLDINGS[-1]))
        self.bar += 1
        aims = np.clip(self.aims(state) / AT_ONCE.tilt, -0.99, 0.99)
        return torch.from_numpy(np.arctanh(aims)).view(1, 1, 1, -1)


# ---------------------------------------------------------------------- values


def information_ratio(own: Floats, base: Floats) -> float:
    """Information ratio of alpha of returns [T]."""
    return float(statistics.measures(own[None], base[None])["information_ratio"][0])


def beyond_linear(kind: str, seed: int, agent: AnalyticConfig = AGENT, samples: int = SAMPLES) -> dict[str, Any]:
    """Values of one seed of "regime" or "interaction": information ratios of every policy on test."""
    world, revealed = nonlinear(kind, seed), nonlinear(kind, seed, revealed=True)
    problem, start = world.problem, accounts.solved(world.problem)
    known = accounts.Agents(KnownLaw(world.law, GRID, problem.test[0]), {"factor": torch.zeros(len(GRID))})
    members = accounts.trained(problem, agent, samples, MEMBERS, seed, start)
    base, closed = accounts.returns(problem, accounts.linear(problem, torch.stack([0 * start, start])))
    added = accounts.linear(revealed.problem, accounts.solved(revealed.problem)[None])

    def ratios(agents: accounts.Agents, market: accounts.Problem = problem) -> list[float]:
        return [information_ratio(own, base) for own in accounts.returns(market, agents)]

    return {
        "attainable": max(ratios(known)),
        "closed_form": information_ratio(closed, base),
        "revealed": ratios(added, revealed.problem)[0],
        "members": ratios(members),
        "rl": ratios(accounts.ensembles(members, MEMBERS))[0],
    }


def beyond_linear_impact(seed: int, agent: AnalyticConfig = AGENT, samples: int = SAMPLES) -> dict[str, Any]:
    """Values of one seed of "impact": mean active returns a year after costs of every policy on test."""
    world = impact(seed)
    problem, start = world.problem, accounts.solved(world.problem)
    known = accounts.Agents(DynamicProgram(world.law, problem.test[0]), {"none": torch.zeros(1)})
    members = accounts.trained(problem, agent, samples, MEMBERS, seed, start)
    base, closed, *blind = accounts.returns(problem, accounts.linear(problem, torch.stack([k * start for k in SCALES])))

    def mean(own: Floats) -> float:
        return statistics.YEAR * float((own - base).mean())

    return {
        "attainable": mean(accounts.returns(problem, known)[0]),
        "closed_form": mean(closed),
        "best_linear": max(map(mean, blind)),
        "members": [mean(x) for x in accounts.returns(problem, members)],
        "rl": mean(accounts.returns(problem, accounts.ensembles(members, MEMBERS))[0]),
    }


def world_row(kind: str, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Row of one seed of a world: RL's share of the attainable value, and all values."""
    values = beyond_linear_impact(seed) if kind == "impact" else beyond_linear(kind, seed)
    share = values["rl"] / values["attainable"]
    return statistics.row("rl_world", share, share, share, {**settings, "world": kind, "seed": seed, **values})


# ---------------------------------------------------------------------- without an edge, and a linear one

WORLD_TIMES = pd.bdate_range("1990-01-01", "2015-01-15").to_numpy()
# Ten years of training, two of validation, twelve of test.
WORLD_SPLITS = SplitConfig(("1991-01-01", "2000-12-31"), ("2001-01-01", "2002-12-31"), ("2003-01-01", "2014-12-31"))


def price_problem(returns: Floats, name: str) -> accounts.Problem:
    """The problem of the preset "laptop" on simulated returns [T, N] of `WORLD_TIMES`."""
    config = dataclasses.replace(preset("laptop"), splits=WORLD_SPLITS)
    symbols = tuple(f"S{i:03d}" for i in range(returns.shape[1]))
    panel = make_panel(WORLD_TIMES, symbols, {"close": prices(returns)}, name=name, source="simulated")
    return agent_cells.data_of(config, panel).problem


def sample_returns() -> Floats:
    """Simple returns [T, N] of the sample, its first 26 years."""
    close = load_panel(RunConfig()).close
    return np.asarray(close[1 : 26 * statistics.YEAR] / close[: 26 * statistics.YEAR - 1] - 1)


def no_edge_row(seed: int, settings: Mapping[str, Any], *, rl: bool = False) -> dict[str, Any]:
    """Row of a world without an edge: Sharpe difference of the closed form to the base, or of RL to the closed form."""
    problem = price_problem(without_edge(sample_returns(), len(WORLD_TIMES), 5_000 + seed), f"no-edge-{seed}")
    start = accounts.solved(problem)
    base, own = accounts.returns(problem, accounts.linear(problem, torch.stack([0 * start, start])))
    if not rl:
        value = float(statistics.measures(own[None], base[None])["sharpe_difference"][0])
        return statistics.row(
            "no_edge_difference", value, value, value, {**settings, "agent": "closed form", "seed": seed}
        )
    agent, envs, group, samples = agent_cells.RL["analytic"]
    rules = dataclasses.replace(problem.environment, envs=envs, group=group)
    members = accounts.trained(problem._replace(environment=rules), agent, samples, agent_cells.SEEDS, seed, start)
    each = accounts.returns(problem, members)
    found = statistics.measures(each, np.broadcast_to(own, each.shape))["sharpe_difference"]
    together = accounts.returns(problem, accounts.ensembles(members, agent_cells.SEEDS))
    ensemble = float(statistics.measures(together, own[None])["sharpe_difference"][0])
    config = {**settings, "seed": seed, "seeds": agent_cells.SEEDS, "ensemble": ensemble}
    return statistics.row("rl_no_edge_world", float(found.mean()), float(found.min()), float(found.max()), config)


def planted_row(seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Row of a planted linear signal: the closed form's information ratio over that of the best clip(k signal)."""
    persistence = 0.5 ** (1 / PLANTED_HALF_LIFE)
    weight = (1 - persistence**PLANTED_HALF_LIFE) / (1 - persistence) / np.sqrt(PLANTED_HALF_LIFE)
    bars = len(WORLD_TIMES)
    world = planted(
        seed, bars, PLANTED_ASSETS, persistence=persistence, information_coefficient=PLANTED_CORRELATION / weight
    )
    rng = np.random.default_rng([seed, 45])
    noise = {f"noise_{i}": autoregressive(rng, bars, PLANTED_ASSETS, PLANTED_HALF_LIFE) for i in range(9)}
    market = market_of(world.close, {"signal": world.signal, **noise})
    config = preset("laptop")
    problem = accounts.Problem(market, config.environment, config.mandate, (FIRST, TRAIN - 1), (TRAIN + 10, bars - 1))
    start = accounts.solved(problem)
    base, own = accounts.returns(problem, accounts.linear(problem, torch.stack([0 * start, start])))
    best = 0.0
    for k in CLIPS:
        law = KnownLaw(np.arctanh(np.clip(k * world.signal, -0.999, 0.999)), (1.0,), problem.test[0])
        clipped = accounts.returns(problem, accounts.Agents(law, {"factor": torch.ones(1)}))[0]
        best = max(best, information_ratio(clipped, base))
    value = information_ratio(own, base) / best
    return statistics.row("planted_capture", value, value, value, {**settings, "seed": seed, "attainable": best})


# ---------------------------------------------------------------------- the gate on solved champions

NULL_WORLDS = {"equal_means": 0.0, "beta_priced_8": 0.08, "beta_priced_24": 0.24}  # world -> price of beta a year
NULL_COUNT, NULL_BATCH, NULL_MEAN = 100, 25, 0.08


def null_row(world: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Row of worlds without skill: how many of their solved champions the gate's rule for an edge would promote."""
    price, history = NULL_WORLDS[world], sample_returns()
    market = history.mean(1) - history.mean()
    beta = (history * market[:, None]).mean(0) / (market**2).mean()
    means = (beta * price if price else np.full(len(beta), NULL_MEAN)) / statistics.YEAR
    cases: list[str] = []
    betas = []
    for batch in range(NULL_COUNT // NULL_BATCH):
        rng = np.random.default_rng([batch, 46, *world.encode()])
        bars = len(WORLD_TIMES)
        drawn = [history[rng.integers(0, len(history), bars)] - history.mean(0) + means for _ in range(NULL_BATCH)]
        for edge in solved_edges(drawn):
            cases.append(edge.case)
            betas.append(edge.beta)
    promoted = cases.count("shown")
    counts = {case: cases.count(case) for case in sorted(set(cases))}
    config = {**settings, "world": world, "promoted": promoted, "worlds": NULL_COUNT, "cases": counts}
    config |= {"mean_beta": float(np.mean(betas)), "algorithm": "closed_form"}
    rate = promoted / NULL_COUNT
    return statistics.row("null_world_trained", rate, rate, rate, config)


def solved_edges(worlds: list[Floats]) -> list[Edge]:
    """The edges of champions solved in worlds of returns [T, N], over the base, on test and validation.

    All worlds are simulated together, by `tilt_accounts`.
    """
    problems = [price_problem(returns, f"null-{i}") for i, returns in enumerate(worlds)]
    first, last = problems[0].train[0], problems[0].train[1] - 1
    cost = problems[0].environment.cost_bps / 1e4
    close = np.stack([problem.market.close.numpy() for problem in problems], 1)  # [T, W, N]
    features = np.stack([problem.market.features.numpy() for problem in problems], 1)  # [T, W, N, F]
    count, size = len(worlds), features.shape[-1]
    tilts = np.broadcast_to(np.vstack([np.zeros(size), 0.2 * np.eye(size)]), (count, size + 1, size))
    gross, net = (tilt_accounts(close, features, tilts, first, last, rate) for rate in (0.0, cost))  # [T, W, 1 + F]
    weights = np.zeros((count, 2, size))
    for i, problem in enumerate(problems):
        found = TiltReturns(gross[:, i, 0], *((x[:, i, 1:] - x[:, i, :1]).T for x in (gross, net)))
        weights[i, 1] = scaled(solve(found), problem.market, first, last)
    validation = make_splits(WORLD_TIMES, WORLD_SPLITS).validation
    test = tilt_accounts(close, features, weights, *problems[0].test, cost)
    chosen = tilt_accounts(close, features, weights, validation.first, validation.last, cost)
    gate, edges = GateConfig(), []
    for i in range(count):
        active = chosen[:, i, 1] - chosen[:, i, 0]
        selected = SelectedPeriod(active, chosen[:, i, 0], active[:, None])
        edges.append(
            measure_edge(
                test[:, i, 1],
                test[:, i, 0],
                np.zeros(len(test)),
                level=gate.significance_level,
                minimum=gate.minimum_edge,
                validation=selected,
            )
        )
    return edges


def tilt_accounts(close: Floats, features: Floats, weights: Floats, first: int, last: int, cost: float) -> Floats:
    """Simple returns [L, W, A] of accounts under the default mandate in W worlds at once, from bar first to last.

    close: [T, W, N]; features: [T, W, N, F]; weights: [W, A, F] of linear scores. The product's accounting with equal
    base weights, fills at the next close and a proportional cost, without the entry.
    """
    mandate = MandateConfig()
    growth = close[1:] / close[:-1]
    shape = (*weights.shape[:2], close.shape[2])
    now = held = np.full(shape, 1 / shape[2])
    rows = []
    for t in range(first, last):
        scores = np.einsum("wnf,waf->wan", features[t], weights, optimize=True)
        desired = np.exp(mandate.tilt * np.tanh(scores))
        change = mandate.trade_speed * (desired / desired.sum(-1, keepdims=True) - now)
        rows.append((held * (growth[t, :, None] - 1)).sum(-1) - cost * np.abs(change).sum(-1))
        held = (now + change) * growth[t, :, None]
        held = now = held / held.sum(-1, keepdims=True)
    return np.array(rows)
