"""Short-horizon actor-critic: objective, gradient against finite differences, critic targets."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import ConfigError
from finrl_pod.rl.algorithms import differentiable
from finrl_pod.rl.algorithms.differentiable import SHAC
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import SHACConfig
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market
from tests.rl.reference_gae import Trajectory, reference_gae
from tests.rl.small_learners import ruin_threshold

RULES = EnvironmentConfig(window=7, envs=12, group=3, cost_bps=200.0)
SETTINGS: dict[str, Any] = {
    "hidden": (4, 3),
    "horizon": 5,
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "max_grad_norm": 1e9,
    "minibatches": 4,
}
STEP, RUIN = 1e-6, 0.985


def small_env() -> MarketEnv:
    market = random_market(5, bars=60, gaps=0.1, starts={1: 20}, volatility=0.03, leak=True)
    return make_env(market, RULES, dtype=torch.float64)


def small_learner(policy: str) -> tuple[Learner, SHAC]:
    learner = Learner(small_env(), SHACConfig(policy=policy, **SETTINGS), seed=3, dtype=torch.float64)  # type: ignore[arg-type]
    algorithm = learner.algorithm
    assert isinstance(algorithm, SHAC)
    return learner, algorithm


def objective(policy: str, shift: tuple[str, int, float] | None = None) -> tuple[float, differentiable.Trajectory]:
    """Objective of a new learner's first trajectory. shift: weight (name, index) and its change."""
    learner, algorithm = small_learner(policy)
    if shift is not None:
        name, index, change = shift
        algorithm.weights()[name].view(-1)[index] += change
    with ruin_threshold(RUIN):
        trajectory = algorithm._collect(learner.collector)
    scale, total = 1 / float(initial_rewards(policy).std()), 0.0
    reward, done, terminated = trajectory.reward.detach(), trajectory.done, trajectory.terminated
    for g in range(learner.env.groups):
        for a in range(learner.env.accounts):
            discount = 1.0
            for h in range(5):
                total += discount * scale * float(reward[h, 0, g, a])
                discount *= 0.9
                over = bool(done[h, 0, g, a])
                if (over and not terminated[h, 0, g, a]) or (h == 4 and not over):
                    total += discount * target_critic_value(algorithm, trajectory, h, g, a)
                if over:
                    discount = 1.0
    return total / learner.env.envs, trajectory


@cache
def initial_rewards(policy: str) -> torch.Tensor:
    """Rewards of the first trajectory with the initial weights, whose standard deviation sets the scale."""
    learner, algorithm = small_learner(policy)
    with ruin_threshold(RUIN):
        return algorithm._collect(learner.collector).reward.detach()


def target_critic_value(algorithm: SHAC, trajectory: differentiable.Trajectory, h: int, g: int, a: int) -> float:
    """Target critic's value of the state after step h of an account."""
    views = algorithm.train_state.targets["critic"].views
    bar = trajectory.bar[h, 0, g].view(1, 1) + 1
    account = trajectory.next_accounts[h][0, g, a].detach().view(1, 1, 1, -1)
    return float(algorithm._value(views, bar, account).detach())


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
def test_actor_gradient_matches_finite_differences(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, algorithm = small_learner(policy)
    part = algorithm.train_state.parts["actor"]
    gradients: list[torch.Tensor] = []
    monkeypatch.setattr(part.optimiser, "step", lambda flat, gradient, *rest: gradients.append(gradient.clone()))
    with ruin_threshold(RUIN):
        metrics = learner.learn(learner.iteration_samples)
    expected, trajectory = objective(policy)
    assert trajectory.terminated.any()
    assert (trajectory.done & ~trajectory.terminated)[:-1].any()
    assert float(metrics["actor_loss"][0]) == pytest.approx(-expected, rel=1e-9)
    gradient = part.parameters.views_of(gradients[0])
    largest = max(float(x.abs().max()) for x in gradient.values())
    for name, partial in gradient.items():
        for index in range(0, partial[0].numel(), 11):
            above, below = (objective(policy, (name, index, side * STEP))[0] for side in (1.0, -1.0))
            expected_partial = -(above - below) / (2 * STEP)
            assert float(partial[0].flatten()[index]) == pytest.approx(
                expected_partial, rel=1e-4, abs=1e-6 * largest
            ), name


def test_critic_targets_are_td_lambda_returns() -> None:
    learner, algorithm = small_learner("equivariant")
    with ruin_threshold(RUIN):
        trajectory = algorithm._collect(learner.collector)
    last, end = algorithm._terminal_values(trajectory)
    truncated = trajectory.done & ~trajectory.terminated
    target = algorithm._returns(trajectory, trajectory.reward.detach(), last.detach(), end.detach(), truncated)
    env, views = learner.env, algorithm.train_state.targets["critic"].views
    current_values, next_values = torch.zeros(5, 1, env.envs).double(), torch.zeros(5, 1, env.envs).double()
    for h in range(5):
        for e in range(env.envs):
            g, a = divmod(e, env.accounts)
            account = trajectory.account[h][0, g, a].detach().view(1, 1, 1, -1)
            current_values[h, 0, e] = float(algorithm._value(views, trajectory.bar[h, 0, g].view(1, 1), account))
            next_values[h, 0, e] = target_critic_value(algorithm, trajectory, h, g, a)
    trajectory_by_account = Trajectory(
        trajectory.reward.detach().flatten(2),
        current_values,
        next_values,
        trajectory.terminated.flatten(2),
        truncated.flatten(2),
    )
    for e in range(env.envs):
        advantages = torch.tensor(reference_gae(trajectory_by_account, 0, e, 0.9, 0.8), dtype=torch.float64)
        torch.testing.assert_close(
            target.flatten(2)[:, 0, e], advantages + current_values[:, 0, e], rtol=1e-9, atol=1e-9
        )


def test_invalid_minibatches_and_horizon_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"agent\.minibatches must divide horizon x groups = 5 x 4 = 20, got 3"):
        Learner(small_env(), SHACConfig(horizon=5, minibatches=3))
    with pytest.raises(ConfigError, match=r"agent\.horizon must be at most the window of 7 bars, got 8"):
        Learner(small_env(), SHACConfig(horizon=8))
