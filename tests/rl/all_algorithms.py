"""Small configs and learners of every algorithm that trains, on an environment that it supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import (
    A2CConfig,
    AgentConfig,
    DifferentiableConfig,
    OffPolicyConfig,
    PPOConfig,
)
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

NAMES = tuple(name for name, info in ALGORITHMS.items() if info.kind != "solved")  # the others do not train
SMALL: Mapping[type, dict[str, Any]] = {
    PPOConfig: {"horizon": 6, "epochs": 2, "minibatches": 2},
    A2CConfig: {"horizon": 6},
    DifferentiableConfig: {"horizon": 6},
    OffPolicyConfig: {"batch_size": 12, "buffer_size": 60, "learning_starts": 12, "gradient_steps": 2, "tau": 0.1},
}


def small_config(name: str, **settings: Any) -> AgentConfig:
    record = ALGORITHMS[name].config_class
    overrides = next(values for kind, values in SMALL.items() if issubclass(record, kind))
    if name == "shac":
        overrides = {**overrides, "epochs": 1, "minibatches": 2}
    if name == "redq":
        overrides = {**overrides, "critics": 4, "policy_delay": 2}
    return record(**{"algorithm": name, "hidden": (5, 6), "learning_rate": 1e-2, **overrides, **settings})


def small_learner(
    name: str,
    members: Sequence[int] = (0,),
    *,
    seed: int = 0,
    hyperparameters: Sequence[Mapping[str, float]] | None = None,
    dtype: torch.dtype = torch.float64,
    market: Any = None,
    rules: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Learner:
    """A learner on two groups of three accounts and windows of 8 bars; the market has gaps and a late listing."""
    kind = "discrete" if ALGORITHMS[name].actions == "discrete" else "portfolio"
    environment = EnvironmentConfig(kind=kind, window=8, envs=6, group=3, **(rules or {}))  # type: ignore[arg-type]
    market = market or random_market(5, bars=60, gaps=0.1, starts={1: 20}, leak=True)
    env = make_env(market, environment, members=members, dtype=dtype)
    return Learner(env, small_config(name, **settings), seed=seed, hyperparameters=hyperparameters, dtype=dtype)


def training_state(learner: Learner, p: int = 0) -> dict[str, torch.Tensor]:
    """All tensors of member p that training changes."""
    weights, rest = learner.algorithm.member(p)
    return {**weights, **{f"rest {name}": x for name, x in rest.items()}}
