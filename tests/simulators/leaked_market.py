"""A market whose first feature is the return of the next bar, for comparing trainers: what PPO of this project earns on
it out of sample, and what a policy trained elsewhere does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from finrl_pod_envs.simulators.exports import ExportedVecTask
from finrl_pod_envs.trading_envs import make_env
from torch import Tensor

from finrl_pod.protocols import VecEnv
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import EnvStep
from tests.markets import random_market

TRAIN, BARS, ASSETS = 400, 600, 3
ENVS, HORIZON, ITERATIONS = 64, 32, 100
SAMPLES = ENVS * HORIZON * ITERATIONS
REWARDS = 50.0  # daily log returns of 0.02 become numbers near 1, as trainers of simulators expect
WITHIN = 0.1
MARKET = random_market(1, bars=BARS, assets=ASSETS, features=2, leak=True)


def market_env(first: int, last: int) -> VecEnv:
    return make_env(MARKET, EnvironmentConfig(window=64, envs=ENVS, group=8), first=first, last=last)


class Scaled:
    """The training environment with rewards multiplied by `REWARDS`."""

    def __init__(self) -> None:
        self._env = market_env(0, TRAIN - 2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: Tensor) -> EnvStep:
        out = self._env.step(action)
        return out._replace(reward=REWARDS * out.reward)


def growth(act: Callable[[Tensor], Tensor]) -> float:
    """Mean log growth per bar out of sample. act: rows [N, S] -> actions [N, D] in [-1, 1]."""
    task = ExportedVecTask(market_env(TRAIN, BARS - 3), seed=9)
    rows, total = task.reset()["obs"], 0.0
    with torch.no_grad():
        for _ in range(128):
            obs, reward, _, _ = task.step(act(rows))
            rows, total = obs["obs"], total + float(reward.mean())
    return total / 128


def own_growth() -> float:
    """Growth of this project's PPO after as many samples."""
    env = market_env(0, TRAIN - 2)
    learner = Learner(env, PPOConfig(policy="mlp", hidden=(32, 32), horizon=HORIZON, epochs=5, minibatches=4), seed=2)
    learner.learn(SAMPLES)
    test = market_env(TRAIN, BARS - 3)
    observation, total = test.reset(9), 0.0
    for _ in range(128):
        out = test.step(learner.act(observation))
        observation, total = out.observation, total + float(out.reward.mean())
    return total / 128


def check(act: Callable[[Tensor], Tensor]) -> None:
    """A policy trained elsewhere earns what our PPO does, within `WITHIN`."""
    theirs, ours = growth(act), own_growth()
    assert ours > 0.004
    assert theirs > (1 - WITHIN) * ours, f"growth per bar: theirs {theirs:.5f}, ours {ours:.5f}"
