"""The analytic algorithm: gradients through the market against finite differences, and invalid settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import ConfigError
from finrl_pod.rl.algorithms.differentiable import Analytic
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


def objective(config: AnalyticConfig, env: MarketEnv, shift: tuple[str, int, float] | None) -> float:
    """Mean over accounts of sum_h gamma^k r_h over the first trajectory, by a plain loop over its rewards.

    shift: weight (name, index) and its change. k counts steps of the episode and restarts when a window ends.
    """
    learner = Learner(env, config, seed=3, dtype=torch.float64)
    algorithm = learner.algorithm
    assert isinstance(algorithm, Analytic)
    if shift is not None:
        name, index, change = shift
        algorithm.weights()[name].view(-1)[index] += change
    trajectory = algorithm._collect(learner.collector)
    total = 0.0
    rewards, done = trajectory.reward.detach().flatten(1), trajectory.done.flatten(1)
    for account in range(env.envs):
        discount = 1.0
        for h in range(config.horizon):
            total += discount * float(rewards[h, account])
            discount = 1.0 if done[h, account] else discount * config.gamma
    assert done.any()
    return total / env.envs


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
@pytest.mark.parametrize("kind", ["portfolio", "stock_trading"])
def test_gradient_matches_finite_differences(policy: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = small_env(kind=kind, hmax=900.0)
    config = AnalyticConfig(policy=policy, **SETTINGS)  # type: ignore[arg-type]
    learner = Learner(env, config, seed=3, dtype=torch.float64)
    algorithm = learner.algorithm
    part = algorithm.train_state.parts["actor"]  # type: ignore[attr-defined]
    gradients: list[torch.Tensor] = []
    monkeypatch.setattr(part.optimiser, "step", lambda flat, gradient, *rest: gradients.append(gradient.clone()))
    metrics = learner.learn(learner.iteration_samples)
    scale = float(algorithm.reward_scale[0])  # type: ignore[attr-defined]
    gradient = part.parameters.views_of(gradients[0])
    assert float(metrics["actor_loss"][0]) == pytest.approx(-scale * objective(config, env, None), rel=1e-9)
    largest = max(float(x.abs().max()) for x in gradient.values())
    for name, partial in gradient.items():
        for index in range(0, partial[0].numel(), 7):
            above, below = (objective(config, env, (name, index, side * STEP)) for side in (1.0, -1.0))
            expected = -scale * (above - below) / (2 * STEP)
            assert float(partial[0].flatten()[index]) == pytest.approx(expected, rel=1e-4, abs=1e-6 * largest), name


def test_exploration_noise_is_scaled_for_each_member() -> None:
    env = make_env(random_market(5, bars=60), RULES, members=(0, 7), dtype=torch.float64)
    learner = Learner(
        env, AnalyticConfig(**SETTINGS), dtype=torch.float64, hyperparameters=[{}, {"exploration_noise": 0.0}]
    )
    noise = learner.algorithm._noise((2, 3, 4))  # type: ignore[attr-defined]
    assert noise.shape == (5, 2, 2, 3, 4)
    assert 0.2 < float(noise[:, 0].std()) < 0.4
    assert not noise[:, 1].any()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            {"whole_shares": True, "adjusted_shares": True},
            "whole shares are not differentiable.*environment.whole_shares = false",
        ),
        ({"buy_allocation": "sequential"}, 'set environment.buy_allocation = "proportional"'),
        (
            {"per_share": 0.01, "per_share_minimum": 1.0, "adjusted_shares": True},
            "a minimum commission is not differentiable: set environment.per_share_minimum = 0",
        ),
    ],
)
def test_non_differentiable_market_settings_are_rejected(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf'agent\.algorithm analytic differentiates the market, and .*{message}.*, or agent\.algorithm = "ppo"',
    ):
        Learner(small_env(**rules), AnalyticConfig(**SETTINGS))


def test_discrete_environments_and_invalid_horizons_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"agent\.algorithm analytic drives continuous actions and this environment"):
        Learner(small_env(kind="discrete"), AnalyticConfig(**SETTINGS))
    with pytest.raises(ConfigError, match=r"agent\.horizon is out of its range, got 0"):
        Learner(small_env(), AnalyticConfig(horizon=0))


def test_delay_beyond_the_horizon_is_rejected() -> None:
    Learner(small_env(delay=5), AnalyticConfig(**SETTINGS))
    with pytest.raises(ConfigError, match=r"agent\.horizon must be environment\.delay or more, got 5 and 6"):
        Learner(small_env(delay=6), AnalyticConfig(**SETTINGS))


def test_single_reward_is_not_scaled() -> None:
    """One account and one step have no standard deviation."""
    learner = Learner(small_env(envs=1, group=1), AnalyticConfig(**{**SETTINGS, "horizon": 1}))
    learner.learn(3)
    assert learner.alive == [True]
    assert learner.algorithm.reward_scale.tolist() == [1.0]  # type: ignore[attr-defined]
