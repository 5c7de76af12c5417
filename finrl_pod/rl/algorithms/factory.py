"""Checks of the settings of an agent, algorithms from configs, and actors from saved agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from finrl_pod.errors import ConfigError
from finrl_pod.market.protocols import DifferentiableVecEnv, MarketVecEnv, group_shape
from finrl_pod.protocols import CentralCriticVecEnv, JointVecEnv, VecEnv
from finrl_pod.rl.acting import Actor
from finrl_pod.rl.algorithms.a2c import A2C
from finrl_pod.rl.algorithms.actor_critic import DDPG, REDQ, SAC, TD3
from finrl_pod.rl.algorithms.base import Algorithm, Population
from finrl_pod.rl.algorithms.closed_form import ClosedForm, solved_weights
from finrl_pod.rl.algorithms.differentiable import SHAC, Analytic, DifferentiableAlgorithm
from finrl_pod.rl.algorithms.dqn import D3QN, DQN, DoubleDQN, DuelingDQN
from finrl_pod.rl.algorithms.maddpg import MADDPG
from finrl_pod.rl.algorithms.off_policy import OffPolicy
from finrl_pod.rl.algorithms.ppo import PPO
from finrl_pod.rl.networks.inputs import make_adapter, spec_of
from finrl_pod.rl.networks.off_policy_networks import make_actor_network
from finrl_pod.rl.networks.policies import BUILT_IN_POLICIES, LINEAR, PolicySpec, make_policy, policy_maker
from finrl_pod.settings.algorithm_configs import (
    AgentConfig,
    ClosedFormConfig,
    DifferentiableConfig,
    OffPolicyConfig,
    OnPolicyConfig,
    PPOConfig,
    SHACConfig,
    TrainedAgentConfig,
)
from finrl_pod.settings.algorithm_registry import ALGORITHMS, algorithm_class, algorithm_info
from finrl_pod.settings.constraints import check_settings, describe_settings
from finrl_pod.settings.multi_agent import MADDPGConfig
from finrl_pod.types import Tensor
from finrl_pod.user_files import unpinned


def is_solved(config: AgentConfig) -> bool:
    """True if an agent is, or starts from, the policy that `finrl_pod.rl.algorithms.closed_form` solves."""
    return isinstance(config, ClosedFormConfig) or (
        isinstance(config, TrainedAgentConfig) and config.start == "closed_form"
    )


def validate(config: AgentConfig, env: VecEnv) -> None:
    """Raises ConfigError for a setting out of range, or one that does not fit the environment."""
    kind = algorithm_info(config.algorithm).kind
    check_settings("agent.", config)
    if isinstance(config, MADDPGConfig):
        _validate_joint(env)
    _validate_policy(config, env)
    _validate_action_space(config, env)
    if isinstance(config, TrainedAgentConfig):
        _validate_encoder(config, env)
    if is_solved(config):
        _validate_start(config, env)
    if isinstance(config, ClosedFormConfig):
        return
    if (
        isinstance(env, CentralCriticVecEnv)
        and env.critic_only
        and kind != "on-policy"
        and not isinstance(config, MADDPGConfig)
    ):
        raise ConfigError(
            f"agent.algorithm {config.algorithm} has no central critic, and this environment is for one; "
            "choose ppo or a2c"
        )
    if isinstance(config, OffPolicyConfig):
        _validate_off_policy(config, env)
    elif isinstance(config, DifferentiableConfig):
        assert isinstance(env, MarketVecEnv)  # see `_validate_action_space`
        _validate_differentiable(config, env)
    elif isinstance(config, OnPolicyConfig):
        _validate_on_policy(config, env)


def _validate_joint(env: VecEnv) -> None:
    """Raises ConfigError unless MADDPG can train on the environment."""
    if not (isinstance(env, JointVecEnv) and env.agents):
        raise ConfigError(
            "agent.algorithm maddpg trains the agents of one market together, and this environment has a single one; "
            "choose ddpg"
        )
    if env.action_kind == "discrete":
        raise ConfigError("maddpg drives continuous actions and these agents make choices; choose ippo or mappo")


def _validate_policy(config: AgentConfig, env: VecEnv) -> None:
    """Raises ConfigError for an unknown policy, and for a custom one where it cannot be used."""
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
        settings = describe_settings(type(config))
        for name in () if isinstance(env, MarketVecEnv) else ("lookback", "encoder_size"):
            if (value := getattr(config, name)) != settings[name].default:
                raise ConfigError(
                    f"agent.{name} is a setting of an encoder of past bars of a market, and there is none here, got "
                    f"{value}; omit it"
                )
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
    spec = spec_of(env, config)
    network = make_actor_network(spec, 1) if isinstance(config, OffPolicyConfig) else make_policy(spec)
    tensors = network.init(torch.Generator(), torch.float32)
    if LINEAR not in tensors:
        raise ConfigError(
            f'{setting} "closed_form" solves the weights of features in a linear score, and agent.policy '
            f'"{unpinned(config.policy)}" has no linear_w; set agent.policy to "linear" or "equivariant"'
        )


def _validate_action_space(config: AgentConfig, env: VecEnv) -> None:
    """Raises ConfigError if the algorithm does not support the actions or observations of the environment."""
    on_market = isinstance(env, MarketVecEnv)
    action_kind = "discrete" if env.action_kind == "discrete" else "continuous"
    able = [
        name
        for name, facts in ALGORITHMS.items()
        if facts.actions in (action_kind, "both") and (on_market or not facts.needs_market)
    ]
    facts = algorithm_info(config.algorithm)
    if facts.actions not in (action_kind, "both"):
        raise ConfigError(
            f"agent.algorithm {config.algorithm} drives {facts.actions} actions and this environment takes "
            f"{action_kind} ones; choose one of {', '.join(able)}, or another "
            f"{'environment.kind' if on_market else 'environment'}"
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
    elif action_kind == "discrete" and (
        config.policy == "linear" or (config.policy == "equivariant" and facts.kind == "on-policy")
    ):
        raise ConfigError(
            f'agent.policy "{config.policy}" of {config.algorithm} scores assets and makes no choices; '
            'set agent.policy = "mlp", or another environment.kind'
        )


def _validate_horizon(horizon: int, env: VecEnv) -> None:
    if isinstance(env, MarketVecEnv) and horizon > env.episode_bars:
        raise ConfigError(
            f"agent.horizon must be at most the window of {env.episode_bars} bars, got {horizon}; "
            "shorten the horizon or lengthen environment.window"
        )


def _validate_minibatches(minibatches: int, horizon: int, groups: int) -> None:
    items = horizon * groups
    if items % minibatches:
        raise ConfigError(
            f"agent.minibatches must divide horizon x groups = {horizon} x {groups} = {items}, got {minibatches}"
        )


def _validate_off_policy(config: OffPolicyConfig, env: VecEnv) -> None:
    accounts = group_shape(env)[-1]
    if config.batch_size > config.buffer_size:
        raise ConfigError(
            f"agent.batch_size must be at most agent.buffer_size, got {config.batch_size} and {config.buffer_size}; "
            "decrease batch_size or increase buffer_size"
        )
    if config.batch_size % accounts:
        raise ConfigError(
            f"agent.batch_size must be a multiple of environment.group, got {config.batch_size} and {accounts}: "
            "a gradient step uses whole groups"
        )
    if config.buffer_size < env.envs:
        raise ConfigError(
            f"agent.buffer_size must hold a step of all {env.envs} environments, got {config.buffer_size}; "
            "increase buffer_size or use fewer environments"
        )
    critics = getattr(config, "critics", 1)
    subset = getattr(config, "critic_subset", 1)
    if getattr(config, "critic_rule", "") == "subset" and not 1 <= subset <= critics:
        raise ConfigError(f"agent.critic_subset must be between 1 and agent.critics = {critics}, got {subset}")


def _validate_differentiable(config: DifferentiableConfig, env: MarketVecEnv) -> None:
    _validate_horizon(config.horizon, env)
    if not isinstance(env, DifferentiableVecEnv):
        raise ConfigError(
            f"agent.algorithm {config.algorithm} differentiates the market, and {type(env).__name__} has no "
            "step_differentiable(); use an environment that has, such as PortfolioEnv, or another algorithm"
        )
    rules = env.config
    if rules.delay > config.horizon:
        raise ConfigError(
            f"agent.horizon must be environment.delay or more, got {config.horizon} and {rules.delay}: with a "
            "shorter horizon no reward depends on an action; increase agent.horizon"
        )
    rough = (
        (rules.whole_shares, "whole shares are not differentiable: set environment.whole_shares = false"),
        (
            rules.buy_allocation == "sequential",
            'buys filled one after another are not differentiable: set environment.buy_allocation = "proportional"',
        ),
        (
            rules.per_share_minimum > 0,
            "a minimum commission is not differentiable: set environment.per_share_minimum = 0",
        ),
    )
    for is_rough, why in rough:
        if is_rough:
            raise ConfigError(
                f'agent.algorithm {config.algorithm} differentiates the market, and {why}, or agent.algorithm = "ppo"'
            )
    if isinstance(config, SHACConfig):
        _validate_minibatches(config.minibatches, config.horizon, env.groups)


def _validate_on_policy(config: OnPolicyConfig, env: VecEnv) -> None:
    _validate_horizon(config.horizon, env)
    if config.h_term and config.h_steps > config.horizon:
        raise ConfigError(f"agent.h_steps must be at most agent.horizon = {config.horizon}, got {config.h_steps}")
    _validate_mlp_options(config, env)
    if not isinstance(config, PPOConfig):
        return
    _, groups, accounts = group_shape(env)
    _validate_minibatches(config.minibatches, config.horizon, groups)
    if config.horizon * groups * accounts == config.minibatches:
        raise ConfigError(
            f"agent.minibatches = {config.minibatches} leaves 1 sample in each minibatch, too few to standardise "
            "advantages; use fewer minibatches or more environments"
        )
    if config.clip_range_schedule == "linear" and config.learning_rate_schedule != "linear":
        raise ConfigError(
            'agent.clip_range_schedule = "linear" needs agent.learning_rate_schedule = "linear", got "constant"'
        )


def _validate_mlp_options(config: OnPolicyConfig, env: VecEnv) -> None:
    for name, usual in (("activation", "tanh"), ("orthogonal_init", True), ("use_sde", False)):
        if config.policy != "mlp" and getattr(config, name) != usual:
            raise ConfigError(
                f'agent.{name} needs agent.policy = "mlp", got {config.policy!r}; set the policy or omit agent.{name}'
            )
    if config.use_sde and env.action_kind == "discrete":
        raise ConfigError("agent.use_sde needs continuous actions, and this environment has discrete ones; omit it")
    if config.normalise and isinstance(env, MarketVecEnv):
        raise ConfigError(
            "agent.normalise is for flat observations; market features are already normalised on the training "
            "split. Omit agent.normalise"
        )


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
WITH_REPLAY: Mapping[str, type[OffPolicy]] = {**OFF_POLICY, "maddpg": MADDPG}


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
        return WITH_REPLAY[config.algorithm](make_adapter(env, spec, dtype), config, env.device, **population)
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
    kind: type[Algorithm] = WITH_REPLAY.get(algorithm, PPO)
    return kind.make_actor(spec)


def on_policy_class(algorithm: str) -> type[PPO]:
    """Class of a built-in or custom on-policy algorithm. Raises ConfigError for an unknown one."""
    if algorithm in ON_POLICY:
        return ON_POLICY[algorithm]
    custom = algorithm_class(algorithm)
    if custom is None or not issubclass(custom, PPO):
        raise ConfigError(
            f"agent.algorithm {unpinned(algorithm)} must be derived from finrl_pod.rl.algorithms.a2c."
            "LossAlgorithm, as finrl-pod new algorithm writes it"
        )
    on_policy: type[PPO] = custom
    return on_policy
