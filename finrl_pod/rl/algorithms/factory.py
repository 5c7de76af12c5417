"""Builds algorithms from configs, and actors from saved agents; checks settings against the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.market.protocols import MarketVecEnv
from finrl_pod.protocols import CentralCriticVecEnv, VecEnv
from finrl_pod.rl.acting.actor import Actor, MeanActor
from finrl_pod.rl.acting.closed_form import solved_weights
from finrl_pod.rl.algorithms import actor_critic, analytic, off_policy, on_policy, shac
from finrl_pod.rl.algorithms.a2c import A2C
from finrl_pod.rl.algorithms.analytic import Analytic, DifferentiableAlgorithm
from finrl_pod.rl.algorithms.base import Algorithm
from finrl_pod.rl.algorithms.closed_form import ClosedForm
from finrl_pod.rl.algorithms.ddpg import DDPG, TD3
from finrl_pod.rl.algorithms.dqn import D3QN, DQN, DoubleDQN, DuelingDQN
from finrl_pod.rl.algorithms.off_policy import OffPolicy
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.rl.algorithms.sac import REDQ, SAC
from finrl_pod.rl.algorithms.shac import SHAC
from finrl_pod.rl.networks.actors import BoundedActor, make_actor_network
from finrl_pod.rl.networks.observation_adapter import make_adapter, spec_of
from finrl_pod.rl.networks.policies import BUILT_IN_POLICIES, PolicySpec, make_policy, policy_maker
from finrl_pod.rl.networks.q_networks import GreedyActor
from finrl_pod.rl.networks.start import LINEAR
from finrl_pod.settings.algorithm_configs import (
    AgentConfig,
    ClosedFormConfig,
    DifferentiableConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    SHACConfig,
    TrainedAgentConfig,
)
from finrl_pod.settings.algorithm_registry import ALGORITHMS, algorithm_class, algorithm_info
from finrl_pod.settings.constraints import check_settings, describe_settings
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
    terms: dict[str, Any] = {"members": env.member_ids, "hyperparameters": hyperparameters, "dtype": dtype}
    if is_solved(config):
        assert isinstance(env, MarketVecEnv)  # see `_validate_start`
        assert env.mandate is not None
        if start is None:
            start = solved_weights(env.market, env.config, env.mandate, env.first, env.last)
        if isinstance(config, ClosedFormConfig):
            return ClosedForm(spec, env, config, start, **terms)
        terms["start"] = start
    terms["seed"] = seed
    if isinstance(config, OffPolicyConfig):
        inputs = make_adapter(env, spec, dtype)
        return OFF_POLICY[config.algorithm](inputs, config, device=env.device, **terms)
    if not isinstance(env, MarketVecEnv):  # flat observations need no market table
        nothing = torch.zeros(1, 0, 0, dtype=dtype, device=env.device)
        assert isinstance(config, OnPolicyConfig)
        return on_policy_class(config.algorithm)(spec, nothing, None, config, **terms)
    market = env.market
    decided = market.tradable[env.first : env.last + 2]
    # Encoders read rows before the first decision, where assets may be missing.
    tradable = None if bool(decided.all()) and spec.encoder == "none" else market.tradable
    if isinstance(config, DifferentiableConfig):
        return DIFFERENTIABLE[config.algorithm](spec, market.features, tradable, config, **terms)
    assert isinstance(config, OnPolicyConfig)
    return on_policy_class(config.algorithm)(spec, market.features, tradable, config, **terms)


def is_solved(config: AgentConfig) -> bool:
    """Whether an agent is, or starts from, the policy that `finrl_pod.rl.acting.closed_form` solves."""
    return isinstance(config, ClosedFormConfig) or (
        isinstance(config, TrainedAgentConfig) and config.start == "closed_form"
    )


def make_actor(algorithm: str, spec: PolicySpec) -> Actor:
    """Actor of agents trained by `algorithm`. Raises ConfigError for an unknown algorithm."""
    algorithm_info(algorithm)
    kind = OFF_POLICY.get(algorithm)
    if kind is None:
        return MeanActor(spec)
    if issubclass(kind, DQN):
        return GreedyActor(spec, dueling=kind.DUELING)
    assert issubclass(kind, actor_critic.ActorCritic)
    return BoundedActor(spec, kind.OUTPUTS_PER_ACTION)


def member_settings(algorithm: str) -> tuple[str, ...]:
    """Names of the settings that may differ between members of a population."""
    if algorithm == ClosedFormConfig.algorithm:
        return ClosedForm.MEMBER_SETTINGS
    known = DIFFERENTIABLE.get(algorithm) or OFF_POLICY.get(algorithm)
    return (known or on_policy_class(algorithm)).MEMBER_SETTINGS


def on_policy_class(algorithm: str) -> type[PPO]:
    """Class of an on-policy algorithm, built in or of one's own. Raises ConfigError for an unknown one."""
    if algorithm in ON_POLICY:
        return ON_POLICY[algorithm]
    found = algorithm_class(algorithm)
    if found is None or not issubclass(found, PPO):
        raise ConfigError(
            f"agent.algorithm {unpinned(algorithm)} must be derived from finrl_pod.rl.algorithms.loss_algorithm."
            "LossAlgorithm, as finrl-pod new algorithm writes it"
        )
    own: type[PPO] = found
    return own


def _is_on_policy(algorithm: str) -> bool:
    return algorithm_info(algorithm).kind == "on-policy"


def validate(config: AgentConfig, env: VecEnv) -> None:
    """Raises ConfigError for a setting out of range, or one that does not fit the environment."""
    algorithm_info(config.algorithm)
    check_settings("agent.", config)
    _validate_policy(config, env)
    _validate_action_space(config, env)
    if isinstance(config, TrainedAgentConfig):
        _validate_encoder(config, env)
    if is_solved(config):
        _validate_start(config, env)
    if isinstance(config, ClosedFormConfig):
        return
    if isinstance(env, CentralCriticVecEnv) and not _is_on_policy(config.algorithm):
        raise ConfigError(
            f"agent.algorithm {config.algorithm} has no critic apart from its actor's observations, which this "
            f"environment is for; choose {' or '.join(ON_POLICY)}"
        )
    if isinstance(config, OffPolicyConfig):
        off_policy.validate(config, env)
        actor_critic.validate(config)
    elif isinstance(config, DifferentiableConfig):
        assert isinstance(env, MarketVecEnv)  # see `_validate_action_space`
        analytic.validate(config, env)
        if isinstance(config, SHACConfig):
            shac.validate(config, env)
    else:
        on_policy.validate(config, env)


def _validate_policy(config: AgentConfig, env: VecEnv) -> None:
    """Raises ConfigError for an unknown policy, and for one of the user's own where it cannot be used."""
    make = policy_maker(config.policy)
    if config.policy in BUILT_IN_POLICIES:
        return
    if isinstance(config, OffPolicyConfig):
        raise ConfigError(
            f"agent.policy {unpinned(config.policy)} can be trained by on-policy and simulator algorithms, and "
            f"{config.algorithm} has its own networks; choose ppo, or one of {', '.join(BUILT_IN_POLICIES)}"
        )
    if env.action_kind == "discrete" and not getattr(make, "discrete", False):
        raise ConfigError(
            f"agent.policy {unpinned(config.policy)} returns scores and this environment takes choices; set discrete = "
            "True in the class if its scores are logits of choices"
        )


def _validate_encoder(config: TrainedAgentConfig, env: VecEnv) -> None:
    """Raises ConfigError for an encoder without a market or with too few bars, and for its settings without it."""
    if config.encoder == "none":
        if config.dropout:
            raise ConfigError(
                f"agent.dropout acts on the code of an encoder, got {config.dropout} and no encoder; set agent.encoder "
                "or omit agent.dropout"
            )
        if not isinstance(env, MarketVecEnv):
            _refuse_changes(config, ("lookback", "encoder_size"), "an encoder, which reads past bars of a market")
        return
    if not isinstance(env, MarketVecEnv):
        raise ConfigError(
            f'agent.encoder "{config.encoder}" reads past bars of a market, and this environment shows one flat row; '
            'set agent.encoder = "none"'
        )
    bars = env.last + 1
    if config.lookback > bars:
        raise ConfigError(
            f"agent.lookback is longer than the data: {config.lookback} bars, and the environment has {bars} up to its "
            "last decision; shorten agent.lookback or take a longer training split"
        )


def _validate_start(config: AgentConfig, env: VecEnv) -> None:
    """Raises ConfigError without a market and its mandate, and for a policy without weights of features."""
    setting = "agent.algorithm" if isinstance(config, ClosedFormConfig) else "agent.start"
    if not isinstance(env, MarketVecEnv):
        raise ConfigError(f'{setting} "closed_form" needs a market; choose another for an environment of your own')
    if env.mandate is None or env.action_kind != "tilt":
        raise ConfigError(
            f'{setting} "closed_form" tilts the base of a mandate with environment.kind "portfolio"; got mandate.base '
            f'"{"none" if env.mandate is None else env.mandate.base}" and environment.kind "{env.config.kind}"'
        )
    if OFF_POLICY.get(config.algorithm) is not None:
        tensors = make_actor_network(spec_of(env, config), 1).init(torch.Generator(), torch.float32)
    else:
        tensors = make_policy(spec_of(env, config)).init(torch.Generator(), torch.float32)
    if LINEAR not in tensors:
        raise ConfigError(
            f'{setting} "closed_form" solves the weights of features in a linear score, and agent.policy '
            f'"{unpinned(config.policy)}" has no linear_w; set agent.policy to "linear" or "equivariant"'
        )


def _refuse_changes(config: AgentConfig, names: Sequence[str], purpose: str) -> None:
    """Raises ConfigError for settings that have no effect here and are not at their default."""
    described = describe_settings(type(config))
    for name in names:
        if (value := getattr(config, name)) != described[name].default:
            raise ConfigError(f"agent.{name} is a setting of {purpose}, and there is none here, got {value}; omit it")


def _validate_action_space(config: AgentConfig, env: VecEnv) -> None:
    """Raises ConfigError if the algorithm does not support the environment's actions or observations."""
    on_market = isinstance(env, MarketVecEnv)
    given = "discrete" if env.action_kind == "discrete" else "continuous"
    able = [
        name
        for name, facts in ALGORITHMS.items()
        if facts.actions in (given, "both") and (on_market or not facts.needs_market)
    ]
    facts = algorithm_info(config.algorithm)
    if facts.actions not in (given, "both"):
        raise ConfigError(
            f"agent.algorithm {config.algorithm} drives {facts.actions} actions and this environment takes {given} "
            f"ones; choose one of {', '.join(able)}, or another {'environment.kind' if on_market else 'environment'}"
        )
    if not on_market:
        if config.policy in BUILT_IN_POLICIES and config.policy != "mlp":
            raise ConfigError(
                f'agent.policy "{config.policy}" reads the assets of a market, and this environment shows one flat '
                'row; set agent.policy = "mlp"'
            )
        if facts.needs_market:
            raise ConfigError(
                f"agent.algorithm {config.algorithm} learns on markets alone; choose one of {', '.join(able)}"
            )
    elif given == "discrete" and (
        config.policy == "linear" or (config.policy == "equivariant" and _is_on_policy(config.algorithm))
    ):
        raise ConfigError(
            f'agent.policy "{config.policy}" of {config.algorithm} scores assets and makes no choices; '
            'set agent.policy = "mlp", or another environment.kind'
        )
