"""Builds algorithms from configs, and actors from saved agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.market.protocols import MarketVecEnv
from finrl_pod.protocols import VecEnv
from finrl_pod.rl.acting.actor import Actor
from finrl_pod.rl.acting.closed_form import solved_weights
from finrl_pod.rl.algorithms.a2c import A2C
from finrl_pod.rl.algorithms.analytic import Analytic, DifferentiableAlgorithm
from finrl_pod.rl.algorithms.base import Algorithm, Population
from finrl_pod.rl.algorithms.closed_form import ClosedForm
from finrl_pod.rl.algorithms.ddpg import DDPG, TD3
from finrl_pod.rl.algorithms.dqn import D3QN, DQN, DoubleDQN, DuelingDQN
from finrl_pod.rl.algorithms.off_policy import OffPolicy
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.rl.algorithms.sac import REDQ, SAC
from finrl_pod.rl.algorithms.shac import SHAC
from finrl_pod.rl.algorithms.validation import is_solved, validate
from finrl_pod.rl.networks.observation_adapter import make_adapter, spec_of
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.settings.algorithm_configs import (
    AgentConfig,
    ClosedFormConfig,
    DifferentiableConfig,
    OffPolicyConfig,
    OnPolicyConfig,
)
from finrl_pod.settings.algorithm_registry import algorithm_class, algorithm_info
from finrl_pod.types import Tensor
from finrl_pod.user_files import unpinned

ON_POLICY: Mapping[str, type[PPO]] = {"ppo": PPO, "a2c": A2C}
DIFFERENTIABLE: Mapping[str, type[DifferentiableAlgorithm]] = {"analytic": Analytic, "shac": SHAC}
OFF_POLICY: Mapping[str, type[OffPolicy]] = {
    "ddpg": DDPG,
    "td3": TD3,
    "sac": SAC,
    "redq": REDQ,
    "dqn": DQN,
    "double_dqn": DoubleDQN,
    "dueling_dqn": DuelingDQN,
    "d3qn": D3QN,
}


def make_algorithm(
    config: AgentConfig,
    env: VecEnv,
    *,
    seed: int = 0,
    hyperparameters: Sequence[Mapping[str, float]] | None = None,
    dtype: torch.dtype = torch.float32,
    start: Tensor | None = None,
) -> Algorithm:
    """The algorithm `config.algorithm` for the members of `env`. Raises ConfigError as `validate` does.

    start: [F], or [P, F] for each member, solved weights of configs that need them (`is_solved`); solved on the bars of
    `env` if None.
    """
    validate(config, env)
    spec = spec_of(env, config)
    population: Population = {
        "seed": seed,
        "members": env.member_ids,
        "hyperparameters": hyperparameters,
        "dtype": dtype,
        "start": None,
    }
    if is_solved(config):
        assert isinstance(env, MarketVecEnv)  # see `_validate_start`
        assert env.mandate is not None
        if start is None:
            start = solved_weights(env.market, env.config, env.mandate, env.first, env.last)
        population["start"] = start
        if isinstance(config, ClosedFormConfig):
            return ClosedForm(spec, env, config, **population)
    if isinstance(config, OffPolicyConfig):
        return OFF_POLICY[config.algorithm](make_adapter(env, spec, dtype), config, env.device, **population)
    if isinstance(env, MarketVecEnv):
        features = env.market.features
        decision_tradable = env.market.tradable[env.first : env.last + 2]
        # Encoders read rows before the first decision, where assets may be missing.
        tradable = None if bool(decision_tradable.all()) and spec.encoder == "none" else env.market.tradable
    else:  # flat observations need no market table
        features = torch.zeros(1, 0, 0, dtype=dtype, device=env.device)
        tradable = None
    if isinstance(config, DifferentiableConfig):
        return DIFFERENTIABLE[config.algorithm](spec, features, tradable, config, **population)
    assert isinstance(config, OnPolicyConfig)
    return on_policy_class(config.algorithm)(spec, features, tradable, config, **population)


def make_actor(algorithm: str, spec: PolicySpec) -> Actor:
    """Actor of agents trained by `algorithm`. Raises ConfigError for an unknown algorithm."""
    algorithm_info(algorithm)
    kind: type[Algorithm] = OFF_POLICY.get(algorithm, PPO)
    return kind.make_actor(spec)


def on_policy_class(algorithm: str) -> type[PPO]:
    """Class of a built-in or custom on-policy algorithm. Raises ConfigError for an unknown one."""
    if algorithm in ON_POLICY:
        return ON_POLICY[algorithm]
    custom = algorithm_class(algorithm)
    if custom is None or not issubclass(custom, PPO):
        raise ConfigError(
            f"agent.algorithm {unpinned(algorithm)} must be derived from finrl_pod.rl.algorithms.loss_algorithm."
            "LossAlgorithm, as finrl-pod new algorithm writes it"
        )
    on_policy: type[PPO] = custom
    return on_policy
