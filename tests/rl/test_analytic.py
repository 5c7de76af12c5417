"""Algorithms that differentiate the market: their gradients against finite differences, and what they refuse."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import ConfigError
from finrl_pod.rl.algorithms.analytic import Analytic
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AnalyticConfig
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

RULES = EnvironmentConfig(window=8, envs=6, group=3, cost_bps=30.0)
SETTINGS: dict[str, Any] = {"hidden": (4, 3), "horizon": 5, "gamma": 0.9, "max_grad_norm": 1e9}
STEP = 1e-6


def small_env(**rules: Any) -> MarketEnv:
    market = random_market(5, bars=60, gaps=0.1, starts={1: 20}, leak=True)
    return make_env(market, dataclasses.replace(RULES, **rules), dtype=torch.float64)


def objective(config: AnalyticConfig, env: MarketEnv, move: tuple[str, int, float] | None) -> float:
    """mean over accounts of sum_h discount^k r_h of the learner's first trajectory, by a plain loop over its rewards.

    move: a weight (name, index) and how much it is moved by. Windows end inside the trajectory, where k begins again.
    """
    learner = Learner(env, config, seed=3, dtype=torch.float64)
    algorithm = learner.algorithm
    assert isinstance(algorithm, Analytic)
    if move is not None:
        name, index, change = move
        algorithm.weights()[name].view(-1)[index] += change
    trajectory = algorithm._collect(learner.worker)
    total = 0.0
    rewards, ended = trajectory.reward.detach().flatten(1), trajectory.ended.flatten(1)
    for account in range(env.envs):
        factor = 1.0
        for h in range(config.horizon):
            total += factor * float(rewards[h, account])
            factor = 1.0 if ended[h, account] else factor * config.gamma
    assert ended.any()
    return total / env.envs


@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
@pytest.mark.parametrize("kind", ["portfolio", "stock_trading"])
def test_the_gradient_is_that_of_finite_differences(policy: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = small_env(kind=kind, hmax=900.0)
    config = AnalyticConfig(policy=policy, **SETTINGS)  # type: ignore[arg-type]
    learner = Learner(env, config, seed=3, dtype=torch.float64)
    algorithm = learner.algorithm
    part = algorithm.train_state.parts["actor"]  # type: ignore[attr-defined]
    given: list[torch.Tensor] = []
    monkeypatch.setattr(part.optimiser, "step", lambda flat, gradient, *rest: given.append(gradient.clone()))
    metrics = learner.learn(learner.iteration_samples)
    scale = float(algorithm.reward_scale[0])  # type: ignore[attr-defined]
    gradient = part.parameters.views_of(given[0])
    assert float(metrics["actor_loss"][0]) == pytest.approx(-scale * objective(config, env, None), rel=1e-9)
    largest = max(float(x.abs().max()) for x in gradient.values())
    for name, slope in gradient.items():
        for index in range(0, slope[0].numel(), 7):
            ahead, behind = (objective(config, env, (name, index, side * STEP)) for side in (1.0, -1.0))
            wanted = -scale * (ahead - behind) / (2 * STEP)
            assert float(slope[0].flatten()[index]) == pytest.approx(wanted, rel=1e-4, abs=1e-6 * largest), name


def test_exploration_is_drawn_from_each_members_own_stream_and_scaled() -> None:
    env = make_env(random_market(5, bars=60), RULES, members=(0, 7), dtype=torch.float64)
    learner = Learner(
        env, AnalyticConfig(**SETTINGS), dtype=torch.float64, hyperparameters=[{}, {"exploration_noise": 0.0}]
    )
    noise = learner.algorithm._noise((2, 3, 4))  # type: ignore[attr-defined]
    assert noise.shape == (5, 2, 2, 3, 4)
    assert 0.2 < float(noise[:, 0].std()) < 0.4
    assert not noise[:, 1].any()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"whole_shares": True, "adjusted_shares": True}, "whole shares jump.*environment.whole_shares = false"),
        ({"buy_allocation": "sequential"}, 'set environment.buy_allocation = "proportional"'),
        (
            {"per_share": 0.01, "per_share_minimum": 1.0, "adjusted_shares": True},
            "a step that a gradient does not see: set environment.per_share_minimum = 0",
        ),
    ],
)
def test_a_market_that_jumps_is_refused(rules: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"agent\.algorithm analytic differentiates the market, and .*{words}"):
        Learner(small_env(**rules), AnalyticConfig(**SETTINGS))


def test_an_environment_that_cannot_be_differentiated_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.algorithm analytic drives continuous actions and this environment"):
        Learner(small_env(kind="discrete"), AnalyticConfig(**SETTINGS))
    with pytest.raises(ConfigError, match=r"agent\.horizon is out of its range, got 0"):
        Learner(small_env(), AnalyticConfig(horizon=0))


def test_an_action_whose_effect_comes_after_the_horizon_is_refused() -> None:
    Learner(small_env(delay=5), AnalyticConfig(**SETTINGS))
    with pytest.raises(ConfigError, match=r"agent\.horizon must be environment\.delay or more, got 5 and 6"):
        Learner(small_env(delay=6), AnalyticConfig(**SETTINGS))


def test_rewards_without_a_spread_are_left_as_they_are() -> None:
    """One account and one step: nothing to take a standard deviation of."""
    learner = Learner(small_env(envs=1, group=1), AnalyticConfig(**{**SETTINGS, "horizon": 1}))
    learner.learn(3)
    assert learner.alive == [True]
    assert learner.algorithm.reward_scale.tolist() == [1.0]  # type: ignore[attr-defined]
