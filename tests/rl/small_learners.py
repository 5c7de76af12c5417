"""Small learners in float64, so that batched and single runs can be compared to within rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from finrl_pod_envs import market_env
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, PPOConfig
from finrl_pod.types import AgentSnapshot, MarketTensor
from tests.markets import random_market

AGENT = PPOConfig(hidden=(6, 5), horizon=6, epochs=3, minibatches=2)
ENVIRONMENT = EnvironmentConfig(window=8, envs=6, group=3)
DOUBLE = torch.float64
PPO_METRICS = {
    *("reward", "approx_kl", "clip_fraction", "explained_variance", "entropy", "grad_norm"),
    *("policy_loss", "value_loss"),
}


def small_env(
    members: Sequence[int] = (0,),
    market: MarketTensor | None = None,
    dtype: torch.dtype = DOUBLE,
    mandate: MandateConfig | None = None,
    **settings: Any,
) -> MarketEnv:
    """By default two groups of three accounts and windows of 8 bars, in a market of 40 bars."""
    config = dataclasses.replace(ENVIRONMENT, **settings)
    return make_env(market or random_market(3), config, members=members, dtype=dtype, mandate=mandate)


def small_learner(
    members: Sequence[int] = (0,),
    *,
    env: MarketEnv | None = None,
    seed: int = 0,
    hyperparameters: Sequence[Mapping[str, float]] | None = None,
    dtype: torch.dtype = DOUBLE,
    **settings: Any,
) -> Learner:
    """settings: changes of the agent config."""
    config = dataclasses.replace(AGENT, **settings)
    env = env or small_env(members, dtype=dtype)
    return Learner(env, config, seed=seed, hyperparameters=hyperparameters, dtype=dtype)


@contextmanager
def ruin_threshold(threshold: float) -> Iterator[None]:
    """Terminate accounts at this fraction of their starting cash, so that short windows also end in ruin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(market_env, "RUIN", threshold)
        yield


def iteration_samples(learner: Learner) -> int:
    """Samples per iteration."""
    return int(learner.config.horizon * learner.env.envs)


def training_state(learner: Learner, p: int = 0) -> dict[str, torch.Tensor]:
    """All tensors of member p that training changes, by name."""
    snapshot = learner.snapshot(p)
    return {**snapshot.weights, **{f"optimiser {name}": value for name, value in snapshot.optimiser.items()}}


def same_weights(one: AgentSnapshot, other: AgentSnapshot) -> bool:
    """True if weights and optimiser state are bit-identical."""
    pairs = [(one.weights, other.weights), (one.optimiser, other.optimiser)]
    return all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in pairs)
