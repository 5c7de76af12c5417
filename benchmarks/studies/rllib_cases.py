"""Environments, hyperparameters and scores of the comparison with RLlib; both sides import them.

The file rllib-protocol.md says what is compared and where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from finrl_pod_envs.gym import GymMarketEnv
from numpy.typing import NDArray

from benchmarks.learning.leaked_signal import leak_future, sample_market
from benchmarks.learning.training import Recipe
from finrl_pod.settings.run import EnvironmentConfig, PPOConfig
from finrl_pod.types import MarketTensor

MARKET = "market"
PENDULUM = "Pendulum-v1"
SAMPLES = 102_400
CPU_SECONDS = 40.0
Act = Callable[[NDArray[np.float32]], Any]


@dataclass(frozen=True)
class Case:
    """A training. limit: environment steps for the budget "samples", seconds for "cpu"."""

    env: str
    budget: str
    limit: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """A finished training. seconds, cpu_seconds: time of the training alone. score: see rllib-protocol.md."""

    seconds: float
    cpu_seconds: float
    steps: int
    score: float
    versions: Mapping[str, str]


@dataclass(frozen=True)
class PPOSettings:
    """Hyperparameters of both sides. An iteration is `horizon` steps of `envs` environments."""

    envs: int
    horizon: int
    minibatch_size: int
    learning_rate: float
    gamma: float
    entropy_coefficient: float
    epochs: int = 10
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)


SETTINGS: Mapping[str, PPOSettings] = {
    PENDULUM: PPOSettings(
        envs=4, horizon=1024, minibatch_size=64, learning_rate=1e-3, gamma=0.9, entropy_coefficient=0.0
    ),
    MARKET: PPOSettings(
        envs=8, horizon=256, minibatch_size=128, learning_rate=2.5e-4, gamma=0.99, entropy_coefficient=0.01
    ),
}
RULES = EnvironmentConfig(envs=SETTINGS[MARKET].envs, group=1)


@cache
def leaky_market() -> tuple[MarketTensor, int, float]:
    """Return the market whose last feature is the future return, its last training bar, and the growth of the oracle.

    The growth is the mean log growth per bar on the bars after training.
    """
    _, market, train_last = sample_market()
    leaky, oracle = leak_future(market, train_last, Recipe(RULES, PPOConfig(), SAMPLES), torch.device("cpu"))
    return leaky, train_last, oracle


def market_score(act: Act) -> float:
    """Return the growth of an account on the bars after training as a share of the growth of the oracle.

    act: flat observation [size] -> action [21] in [-1, 1].
    """
    market, train_last, oracle = leaky_market()
    bars = market.steps - train_last - 1
    # The only window of all these bars.
    env = GymMarketEnv(market, replace(RULES, window=bars), first=train_last + 1, last=market.steps - 1)
    row, _ = env.reset(seed=0)
    growth = 0.0
    is_over = False
    while not is_over:
        row, reward, terminated, truncated, _ = env.step(act(row))
        growth = growth + reward
        is_over = terminated or truncated
    return growth / bars / oracle
