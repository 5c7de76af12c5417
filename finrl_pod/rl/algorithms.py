"""From a config and an environment to the algorithm that it names, and from a saved agent to how it acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from finrl_pod.agents import ALGORITHMS, AgentConfig, PPOConfig
from finrl_pod.config import check_ranges
from finrl_pod.errors import ConfigError
from finrl_pod.rl import on_policy
from finrl_pod.rl.algorithm import Actor, Algorithm
from finrl_pod.rl.networks import PolicySpec
from finrl_pod.rl.on_policy import MeanActor
from finrl_pod.rl.ppo import PPO
from finrl_pod.rl.ranges import Ranges, check_setting

RANGES: Mapping[str, Ranges] = {"ppo": PPO.RANGES}


def make_algorithm(
    config: AgentConfig,
    env: Any,
    *,
    seed: int = 0,
    hyperparameters: Sequence[Mapping[str, float]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Algorithm:
    """The algorithm of `config.algorithm` for the members of `env`. Raises ConfigError as `check` does."""
    check(config, env)
    market = env.market
    _, assets, features = market.shape
    spec = PolicySpec(config.policy, assets, features, env.action_size, tuple(config.hidden), env.action_kind)
    decided = market.tradable[env.first : env.last + 2]
    assert isinstance(config, PPOConfig)
    return PPO(
        spec,
        market.features,
        None if bool(decided.all()) else market.tradable,
        config,
        seed=seed,
        members=env.member_ids,
        hyperparameters=hyperparameters,
        dtype=dtype,
    )


def make_actor(algorithm: str, spec: PolicySpec) -> Actor:
    """How an agent that was trained by `algorithm` acts. Raises ConfigError for an algorithm that there is none of."""
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"there is no algorithm {algorithm!r}; known are {', '.join(ALGORITHMS)}")
    return MeanActor(spec)


def check(config: AgentConfig, env: Any) -> None:
    """Raises ConfigError for a setting out of its range, or one that does not fit the environment."""
    if config.algorithm not in ALGORITHMS:
        raise ConfigError(
            f"agent.algorithm must be one of {', '.join(ALGORITHMS)}, got {config.algorithm!r}; "
            "see finrl-pod algorithms"
        )
    check_ranges("agent", config, {"hidden": len(config.hidden) >= 1 and min(config.hidden) >= 1})
    ranges = RANGES[config.algorithm]
    on_policy.check(config, env)
    for name in ranges:
        check_setting(ranges, name, getattr(config, name))
