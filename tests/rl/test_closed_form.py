"""Solved linear policies: the solver against scipy, the fit against plain numpy, and training that starts from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env
from scipy.optimize import minimize
from sklearn.linear_model import Ridge

from finrl_pod.errors import ConfigError
from finrl_pod.rl.algorithms.closed_form import (
    HORIZON,
    PENALTIES,
    SCORE_SCALE,
    TiltReturns,
    regression_weights,
    scaled,
    solve,
    solved_weights,
    tilt_returns,
)
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import ClosedFormConfig
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import Floats, MarketTensor
from tests.markets import random_market
from tests.rl.all_algorithms import NAMES, small_config

RULES = EnvironmentConfig(window=8, envs=6, group=3, cost_bps=20.0)
MANDATE = MandateConfig()


def random_returns(seed: int, features: int = 4, bars: int = 400) -> TiltReturns:
    """Returns of tilts with alphas, betas and costs of about the same size, correlated by a common factor."""
    rng = np.random.default_rng(seed)
    base = rng.normal(5e-4, 0.01, bars)
    noise = rng.normal(size=(features, bars)) + rng.normal(size=bars)
    gross = rng.normal(0, 2e-4, (features, 1)) + rng.normal(0, 0.2, (features, 1)) * base + 1e-3 * noise
    return TiltReturns(base, gross, gross - np.abs(rng.normal(0, 5e-5, (features, 1))))


def planted_market(bars: int = 300) -> MarketTensor:
    """Four assets with gaps, a late listing and a delisting; feature 0 knows the next return, feature 1 nothing."""
    return random_market(3, bars=bars, assets=4, features=2, gaps=0.02, starts={1: 40}, ends={2: 220}, leak=True)


def small_env(market: MarketTensor, mandate: MandateConfig | None = MANDATE, **rules: Any) -> MarketEnv:
    environment = dataclasses.replace(RULES, **rules)
    return make_env(market, environment, members=(0, 1), mandate=mandate, last=200, dtype=torch.float64)


def test_regression_is_a_ridge_of_relative_returns_with_purged_folds() -> None:
    market = planted_market()
    first, last, embargo = 10, 250, 3
    fill, is_open = market.fill.numpy(), (market.tradable & market.fillable).numpy()
    samples = []
    for t in range(first, last - HORIZON):
        rows = np.column_stack([market.features[t].double(), fill[t + HORIZON] / fill[t] - 1])[is_open[t]]
        samples.append(rows - rows.mean(0))

    def fitted(bars: list[int], penalty: float) -> Floats:
        rows = np.concatenate([samples[t] for t in bars])
        alpha = penalty * np.square(rows[:, :-1]).sum() / 2
        weights: Floats = Ridge(alpha=alpha, fit_intercept=False).fit(rows[:, :-1], rows[:, -1]).coef_
        return weights

    def error(penalty: float) -> float:
        total = 0.0
        for block in np.array_split(np.arange(len(samples)), 5):
            apart = [t for t in range(len(samples)) if np.abs(block - t).min() > HORIZON + embargo]
            rows = np.concatenate([samples[t] for t in block])
            total += np.square(rows[:, -1] - rows[:, :-1] @ fitted(apart, penalty)).sum()
        return total

    weights = regression_weights(market, first, last, embargo)
    best = min(PENALTIES, key=error)
    np.testing.assert_allclose(weights, fitted([*range(len(samples))], best), rtol=1e-8)
    assert weights[0] > 3 * abs(weights[1])  # the next return is a part of the predicted one
    later = market.fill.clone()
    later[last:] *= 3
    assert np.array_equal(regression_weights(dataclasses.replace(market, fill=later), first, last, embargo), weights)
    assert regression_weights(market, first, first + HORIZON, embargo).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("seed", range(4))
def test_solver_minimises_its_objective(seed: int) -> None:
    """scipy minimises the same objective over x = plus - minus with both parts above 0, where |x| is linear."""
    returns = random_returns(seed)
    beta = np.array([np.polyfit(returns.base, row, 1)[0] for row in returns.gross])
    alpha = returns.gross - beta[:, None] * returns.base
    risk = alpha.std(1, ddof=1)
    mean, cost = alpha.mean(1) / risk, (returns.gross - returns.net).mean(1) / risk
    curvature = np.corrcoef(alpha) + np.eye(len(risk))

    def objective(parts: Floats) -> float:
        x = parts[: len(risk)] - parts[len(risk) :]
        return float(x @ curvature @ x / 2 - mean @ x + np.tile(cost, 2) @ parts) * 1e6

    best = minimize(objective, np.full(8, 1e-3), bounds=[(0, None)] * 8, options={"ftol": 1e-15, "gtol": 1e-12})
    expected = (best.x[:4] - best.x[4:]) / risk
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(solve(returns), expected, atol=1e-3 * np.abs(expected).max())


def test_costs_above_the_alpha_leave_a_feature_out() -> None:
    returns = random_returns(0)
    dear = TiltReturns(returns.base, returns.gross, returns.gross - 1.0)
    assert solve(dear).tolist() == [0.0] * 4
    free = TiltReturns(returns.base, returns.gross, returns.gross)
    assert (solve(free) != 0).all()


def test_a_feature_that_is_the_same_for_all_assets_gets_no_weight() -> None:
    returns = random_returns(1)
    gross = np.vstack([returns.gross, 1e-18 * np.sin(np.arange(400))])
    solved = solve(TiltReturns(returns.base, gross, gross))
    assert solved[-1] == 0
    np.testing.assert_allclose(solved[:-1], solve(TiltReturns(returns.base, returns.gross, returns.gross)))


def test_tilt_returns_match_plain_numpy() -> None:
    """Fills at the next close, equal base weights, a twentieth of the gap traded each bar."""
    market = random_market(8, bars=60, assets=3, features=2)
    rules = dataclasses.replace(RULES, cost_bps=0.0)
    found = tilt_returns(market, rules, MANDATE, 0, 50)
    growth = (market.close[1:] / market.close[:-1]).numpy()
    table = market.features.numpy().astype(float)
    for i, expected in enumerate([found.base, found.base + found.gross[0], found.base + found.gross[1]]):
        scores = 0.2 * table[..., i - 1] if i else np.zeros(table.shape[:2])
        held, virtual, own = np.zeros(3), np.full(3, 1 / 3), []
        for t in range(50):
            desired = np.exp(0.5 * np.tanh(scores[t]))
            change = 0.05 * (desired / desired.sum() - virtual)
            own.append(float((held * (growth[t] - 1)).sum()))
            held = (virtual + change) * growth[t]
            held = virtual = held / held.sum()
        np.testing.assert_allclose(expected, own, atol=1e-5)  # orders are sized a bar before they fill
    np.testing.assert_array_equal(found.gross, found.net)


def test_a_planted_feature_gets_the_weight_and_scores_have_their_scale() -> None:
    market = planted_market()
    weights = solved_weights(market, RULES, MANDATE, 0, 200)
    assert weights[0] > 2 * weights[1].abs()
    scores = (market.features[:201] @ weights)[market.tradable[:201]]
    assert float(scores.std()) == pytest.approx(SCORE_SCALE, rel=1e-5)
    assert scaled(np.zeros(2), market, 0, 200).tolist() == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "mandate"),
    [
        ({"half_spread_bps": 5.0, "per_share": 0.01}, {"tilt": 1.0, "max_weight": 0.5}),
        ({"leverage": 0.8}, {"max_turnover": 20.0}),
        ({}, {"volatility_target": 0.1}),
    ],
)
def test_costs_and_limits_of_the_mandate_count(rules: dict[str, Any], mandate: dict[str, Any]) -> None:
    market = planted_market()
    terms = dataclasses.replace(RULES, **rules), dataclasses.replace(MANDATE, **mandate)
    returns = tilt_returns(market, *terms, 0, 201)
    assert (returns.gross.mean(1) > returns.net.mean(1)).all()
    assert solved_weights(market, *terms, 0, 200)[0] > 0
    assert not np.allclose(returns.gross, tilt_returns(market, RULES, MANDATE, 0, 201).gross)


@pytest.mark.slow
def test_an_agent_is_solved_whatever_seed_and_samples() -> None:
    env = small_env(planted_market())
    agents = [Learner(env, ClosedFormConfig(), seed=seed) for seed in (1, 2)]
    agents[1].learn(500)
    weights = [agent.snapshot(1).weights["linear_w"] for agent in agents]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0].float(), solved_weights(env.market, RULES, MANDATE, env.first, env.last).float())
    assert agents[0].act(env.reset(0)).shape == (2, 6, 4)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["linear", "equivariant"])
@pytest.mark.parametrize("name", [name for name in NAMES if ALGORITHMS[name].actions != "discrete"])
def test_training_starts_from_the_solved_policy_and_is_pulled_back_to_it(name: str, policy: str) -> None:
    env, start = small_env(planted_market()), torch.tensor([0.5, -0.3])
    config = small_config(name, policy=policy, start="closed_form", weight_decay=20.0)
    learner = Learner(env, config, seed=1, dtype=torch.float64, start=start)
    solved = Learner(env, ClosedFormConfig(), dtype=torch.float64, start=start)
    observation = env.reset(0)
    expected, action = solved.act(observation), learner.act(observation)
    if ALGORITHMS[name].kind == "off-policy":  # actions are within -2 and 2, by a tanh
        expected = 2 * torch.tanh(expected / 2)
    torch.testing.assert_close(action, expected)
    before = learner.algorithm.weights()["linear_w"].clone()
    free = Learner(env, dataclasses.replace(config, weight_decay=0.0), seed=1, dtype=torch.float64, start=start)
    for agent in (learner, free):
        agent.learn(8 * agent.iteration_samples, schedule=lambda _: 1.0)
    distances = [float((agent.algorithm.weights()["linear_w"] - before).norm()) for agent in (learner, free)]
    assert 0 < distances[0] < distances[1]


def test_each_member_has_a_start() -> None:
    env = small_env(planted_market())
    start = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    learner = Learner(env, small_config("ppo", policy="linear", start="closed_form"), start=start)
    torch.testing.assert_close(learner.algorithm.weights()["linear_w"], start)


@pytest.mark.parametrize("solved", [True, False])
@pytest.mark.parametrize(
    ("policy", "mandate", "kind"),
    [
        ("mlp", MANDATE, "portfolio"),
        ("linear", MandateConfig(base="none"), "portfolio"),
        ("linear", None, "stock_trading"),
    ],
)
def test_refuses_what_is_not_linear_or_has_no_mandate(
    solved: bool, policy: str, mandate: MandateConfig | None, kind: str
) -> None:
    env = small_env(planted_market(), mandate, kind=kind)
    trained = small_config("ppo", policy=policy, start="closed_form")
    with pytest.raises(ConfigError, match="closed_form"):
        Learner(env, ClosedFormConfig(policy=policy) if solved else trained)
