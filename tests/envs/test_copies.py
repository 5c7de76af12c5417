"""Copies and pickles of market environments and their Gymnasium views, and processes that are forked from a session."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from finrl_pod_envs.gym import GymMarketEnv, GymVectorEnv
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from tests.markets import random_market

MARKET = random_market(6, bars=60)
CONFIG = EnvironmentConfig(window=8, envs=4, group=2)
RULES: list[dict[str, Any]] = [
    {"config": CONFIG},
    {"config": CONFIG, "mandate": MandateConfig(base="equal_weight", max_turnover=4.0)},
    {"config": EnvironmentConfig(kind="stock_trading", window=8, envs=4, group=2)},
    {"config": EnvironmentConfig(kind="discrete", window=8, envs=4, group=2)},
    {"config": EnvironmentConfig(window=8, envs=4, group=2, delay=3)},  # steps in torch
]
Clone = Callable[[Any], Any]
CLONES: dict[str, Clone] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),  # noqa: S301
    "cloudpickle": lambda x: pickle.loads(cloudpickle.dumps(x)),  # noqa: S301
}
STARTS_THREADS = """
import os
import gymnasium, torch
torch.set_num_threads(2)
torch.randn(10**6).exp().sum()  # starts them
from finrl_pod.native.device import use_threads
from finrl_pod_envs.gym import GymMarketEnv
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market
market, parent = random_market(6, bars=60, assets=40, features=20), os.getpid()
def make():
    use_threads(2)
    assert torch.get_num_threads() == (2 if os.getpid() == parent else 1)
    torch.randn(10**6).exp().sum()
    return GymMarketEnv(market, EnvironmentConfig(window=8))
envs = gymnasium.vector.AsyncVectorEnv([make] * 2, context="fork")
envs.reset_async(seed=0); envs.reset_wait(timeout=30)
envs.step_async(envs.action_space.sample()); envs.step_wait(timeout=30)
envs.close()
make()
"""


def steps(env: Any, count: int = 12) -> list[np.ndarray]:
    """Observations and rewards of steps with the same actions, over the end of an episode."""
    rng, outcomes = np.random.default_rng(0), []
    for _ in range(count):
        shape = env.action_space.shape
        action = rng.integers(3, size=shape) if env.action_space.dtype == np.int64 else rng.uniform(-1, 1, shape)
        observation, reward, terminated, truncated, _ = env.step(action)
        outcomes += [np.asarray(observation), np.asarray(reward)]
        if isinstance(env, GymMarketEnv) and (terminated or truncated):
            outcomes.append(env.reset()[0])
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("how", CLONES)
@pytest.mark.parametrize("rules", RULES)
def test_copy_of_a_gymnasium_view_continues_on_its_own(how: str, rules: dict[str, Any]) -> None:
    for env in (GymMarketEnv(MARKET, **rules), GymVectorEnv(MARKET, **rules, stagger=True)):
        env.reset(seed=3)
        steps(env, 3)
        before = pickle.dumps(env.np_random.bit_generator.state)
        other = CLONES[how](env)
        expected = steps(other)
        assert pickle.dumps(env.np_random.bit_generator.state) == before
        ours = steps(env)
        assert all(np.array_equal(x, y) for x, y in zip(ours, expected, strict=True))
        inner, kept = other._adapter.env, env._adapter.env
        assert (inner._native is None) == (kept._native is None)
        assert (inner._gradient is None) == (kept._gradient is None)


@pytest.mark.parametrize("how", CLONES)
def test_copy_of_an_environment_with_gradients_has_the_values_without_the_graph(how: str) -> None:
    env = make_env(MARKET, CONFIG)
    env.reset(1)
    action = torch.zeros(1, 4, env.action_size, requires_grad=True)
    env.step_differentiable(action)
    other = CLONES[how](env)
    assert env.state is not None
    assert env.state.shares.requires_grad
    assert not other.state.shares.requires_grad
    assert torch.equal(other.step(action.detach()).reward, env.step(action.detach()).reward)


@pytest.mark.slow
def test_forked_environments_run_after_torch_has_started_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STARTS_THREADS], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
