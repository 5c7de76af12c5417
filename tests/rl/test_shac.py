"""Short-horizon actor-critic: its objective by a plain loop, its gradient by differences, its critic's targets."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import ConfigError
from finrl_pod.rl.algorithms import analytic
from finrl_pod.rl.algorithms.shac import SHAC
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import SHACConfig
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market
from tests.rl.learners import easily_ruined
from tests.rl.plain_gae import Trajectory, plain_gae

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


def objective(policy: str, move: tuple[str, int, float] | None = None) -> tuple[float, analytic.Trajectory]:
    """Of a fresh learner's first trajectory, in rewards as they are; move: a weight (name, index) and by how much."""
    learner, algorithm = small_learner(policy)
    if move is not None:
        name, index, change = move
        algorithm.weights()[name].view(-1)[index] += change
    with easily_ruined(RUIN):
        trajectory = algorithm._collect(learner.worker)
    scale, total = 1 / float(unmoved_rewards(policy).std()), 0.0
    reward, ended, terminated = trajectory.reward.detach(), trajectory.ended, trajectory.terminated
    for g in range(learner.env.groups):
        for a in range(learner.env.accounts):
            factor = 1.0
            for h in range(5):
                total += factor * scale * float(reward[h, 0, g, a])
                factor *= 0.9
                over = bool(ended[h, 0, g, a])
                if (over and not terminated[h, 0, g, a]) or (h == 4 and not over):
                    total += factor * value(algorithm, trajectory, h, g, a)
                if over:
                    factor = 1.0
    return total / learner.env.envs, trajectory


@cache
def unmoved_rewards(policy: str) -> torch.Tensor:
    """Of the first trajectory with nothing moved: their spread is the unit."""
    learner, algorithm = small_learner(policy)
    with easily_ruined(RUIN):
        return algorithm._collect(learner.worker).reward.detach()


def value(algorithm: SHAC, trajectory: analytic.Trajectory, h: int, g: int, a: int) -> float:
    """The target critic's of what step h of an account led to."""
    views = algorithm.train_state.targets["critic"].views
    day = trajectory.day[h, 0, g].view(1, 1) + 1
    account = trajectory.reached[h][0, g, a].detach().view(1, 1, 1, -1)
    return float(algorithm._value(views, day, account).detach())


@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
def test_the_actors_gradient_is_that_of_finite_differences(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, algorithm = small_learner(policy)
    part = algorithm.train_state.parts["actor"]
    given: list[torch.Tensor] = []
    monkeypatch.setattr(part.optimiser, "step", lambda flat, gradient, *rest: given.append(gradient.clone()))
    with easily_ruined(RUIN):
        metrics = learner.learn(learner.iteration_samples)
    wanted, trajectory = objective(policy)
    assert trajectory.terminated.any()
    assert (trajectory.ended & ~trajectory.terminated)[:-1].any()
    assert float(metrics["actor_loss"][0]) == pytest.approx(-wanted, rel=1e-9)
    gradient = part.parameters.views_of(given[0])
    largest = max(float(x.abs().max()) for x in gradient.values())
    for name, slope in gradient.items():
        for index in range(0, slope[0].numel(), 11):
            ahead, behind = (objective(policy, (name, index, side * STEP))[0] for side in (1.0, -1.0))
            by_difference = -(ahead - behind) / (2 * STEP)
            assert float(slope[0].flatten()[index]) == pytest.approx(by_difference, rel=1e-4, abs=1e-6 * largest), name


def test_the_critics_targets_are_td_lambda_returns() -> None:
    learner, algorithm = small_learner("equivariant")
    with easily_ruined(RUIN):
        trajectory = algorithm._collect(learner.worker)
    last, end = algorithm._terminal_values(trajectory)
    truncated = trajectory.ended & ~trajectory.terminated
    target = algorithm._returns(trajectory, trajectory.reward.detach(), last.detach(), end.detach(), truncated)
    env, views = learner.env, algorithm.train_state.targets["critic"].views
    now, following = torch.zeros(5, 1, env.envs).double(), torch.zeros(5, 1, env.envs).double()
    for h in range(5):
        for e in range(env.envs):
            g, a = divmod(e, env.accounts)
            account = trajectory.account[h][0, g, a].detach().view(1, 1, 1, -1)
            now[h, 0, e] = float(algorithm._value(views, trajectory.day[h, 0, g].view(1, 1), account))
            following[h, 0, e] = value(algorithm, trajectory, h, g, a)
    plain = Trajectory(
        trajectory.reward.detach().flatten(2), now, following, trajectory.terminated.flatten(2), truncated.flatten(2)
    )
    for e in range(env.envs):
        advantages = torch.tensor(plain_gae(plain, 0, e, 0.9, 0.8), dtype=torch.float64)
        torch.testing.assert_close(target.flatten(2)[:, 0, e], advantages + now[:, 0, e], rtol=1e-9, atol=1e-9)


def test_parts_that_do_not_divide_a_path_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.minibatches must divide horizon x groups = 5 x 4 = 20, got 3"):
        Learner(small_env(), SHACConfig(horizon=5, minibatches=3))
    with pytest.raises(ConfigError, match=r"agent\.horizon must be at most the episode's window of 7 bars, got 8"):
        Learner(small_env(), SHACConfig(horizon=8))
