"""What pods train on: the market of a panel, its training environments, and the trainer of a process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache, partial

import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.member_accounts import simulate_members
from finrl_pod_envs.trading_envs import make_env
from finrl_pod_strategies.base_portfolios import with_base

from finrl_pod.data.features import table_features
from finrl_pod.data.splits import REWARD_LAG, Splits
from finrl_pod.data.tensor import build_market, to_device
from finrl_pod.errors import ConfigError, UndefinedFeatureError
from finrl_pod.memory import release_mapped_pages
from finrl_pod.rl.algorithms.closed_form import solved_weights
from finrl_pod.rl.algorithms.factory import validate as validate_agent
from finrl_pod.rl.networks.policies import BUILT_IN_POLICIES, LINEAR, PolicySpec, make_policy
from finrl_pod.settings.algorithm_configs import AgentConfig, ClosedFormConfig, TrainedAgentConfig
from finrl_pod.settings.algorithm_registry import algorithm_info
from finrl_pod.settings.run import RunConfig, TournamentConfig, validate_tournament
from finrl_pod.tournament.cohort import CohortTrainer
from finrl_pod.tournament.scoring import MarketScorer
from finrl_pod.types import MarketTensor, Panel, Tensor


def make_market(panel: Panel, config: RunConfig, splits: Splits) -> MarketTensor:
    """Return the market of a panel, its features normalised by statistics of the training split only.

    Raises FeatureError as `build_market`, and for a feature of a table without a value on the training split.
    """
    environment = config.environment
    market = build_market(
        panel,
        config.features.names,
        (splits.train.first, splits.train.last),
        environment.fill,
        turbulence=environment.turbulence_limit > 0,
    )
    columns = table_features(panel)
    for i, name in enumerate(config.features.names):
        raw = market.raw_features[splits.train.first : splits.train.last + 1, :, i]
        if name in columns and not raw.isfinite().any():
            raise UndefinedFeatureError(
                f"feature {name!r} has no value on the training bars: train on later ones, raise max_age_days of its "
                "table, or drop it"
            )
    return with_base(market, panel, config.mandate)


def training_env(config: RunConfig, market: MarketTensor, splits: Splits, members: Sequence[int]) -> MarketEnv:
    """Return environments on the training split.

    The last decision is two bars before the end, so that its fill and its reward lie inside the split.
    """
    env = make_env(
        market,
        config.environment,
        members=members,
        first=splits.train.first,
        last=splits.train.last - REWARD_LAG,
        mandate=config.mandate,
    )
    release_mapped_pages()  # of the tables that it made its own from
    return env


def check_settings(config: RunConfig, market: MarketTensor, splits: Splits) -> None:
    """Raise ConfigError for settings that a tournament cannot run with, before anything is written.

    config: result of `with_effective_settings`.
    """
    validate_tournament(config.tournament, cohorts=1 + len(config.cohorts))
    env = training_env(config, market, splits, (0,))
    for agent in (config.agent, *config.cohorts):
        validate_agent(agent, env)


def with_effective_settings(config: RunConfig) -> tuple[RunConfig, str]:
    """A config without settings that have no effect beside a solved policy, and a note that names them, or "".

    A tournament of `closed_form` solves one agent. An agent trains from new weights where no policy can be solved for
    it. Raises ConfigError for parts of a config that a solved agent has no use for.
    """
    solves = isinstance(config.agent, ClosedFormConfig)
    if any(isinstance(agent, ClosedFormConfig) for agent in config.cohorts) or (solves and config.cohorts):
        raise ConfigError(
            'algorithm "closed_form" solves one agent and trains no cohorts; remove them, or set start = "closed_form" '
            "with an algorithm that trains"
        )
    agents = [_with_possible_start(agent, config) for agent in (config.agent, *config.cohorts)]
    if agents != [config.agent, *config.cohorts]:
        effective_config = dataclasses.replace(config, agent=agents[0], cohorts=tuple(agents[1:]))
        return effective_config, (
            'agent.start "closed_form" has no effect: it needs a mandate, environment.kind "portfolio" and a policy '
            "with linear_w; training starts from new weights"
        )
    if not solves:
        return config, ""
    single = TournamentConfig(
        pods=1, generations=1, samples_per_generation=1, leaderboard=1, champion=1, selection="best", search="off"
    )
    unused_settings = [
        f"tournament.{field.name}"
        for field in dataclasses.fields(single)
        if getattr(config.tournament, field.name) not in (field.default, getattr(single, field.name))
        or field.name in ("pods", "generations", "samples_per_generation", "champion")
    ]
    note = f'agent.algorithm "closed_form" solves one agent: {", ".join(unused_settings)} have no effect'
    return dataclasses.replace(config, tournament=single), note


def _with_possible_start(agent: AgentConfig, config: RunConfig) -> AgentConfig:
    """The agent, from new weights if no policy can be solved for it."""
    if not isinstance(agent, TrainedAgentConfig) or agent.start == "new":
        return agent
    tilts = config.environment.kind == "portfolio" and config.mandate.base != "none"
    policy = agent.policy
    if policy in BUILT_IN_POLICIES:
        is_linear = policy != "mlp"
    else:  # whether it has weights of features in its scores
        spec = PolicySpec(policy, 2, 2, 2, (2,), action="tilt")
        is_linear = LINEAR in make_policy(spec).init(torch.Generator(), torch.float32)
    if tilts and is_linear and algorithm_info(agent.algorithm).actions != "discrete":
        return agent
    return dataclasses.replace(agent, start="new")


def make_trainer(
    config: RunConfig,
    panel: Panel,
    market: MarketTensor,
    splits: Splits,
    device: torch.device,
    threads: int | None = None,
    start: Tensor | None = None,
) -> CohortTrainer:
    """Return what trains pods on the training split and scores them on the validation split, on a device.

    threads: CPU threads; default: the number in the config. start: solved weights [F] of agents that need them; solved
    when the first one does by default.
    """
    device_market = to_device(market, device)
    return CohortTrainer(
        config,
        lambda members: training_env(config, device_market, splits, members),
        MarketScorer(market, config, (splits.validation.first, splits.validation.last), simulate_members),
        panel.sha256,
        threads,
        cache(partial(solved_start, config, market, splits)) if start is None else lambda: start,
    )


def solved_start(config: RunConfig, market: MarketTensor, splits: Splits) -> Tensor:
    """Weights [F] of the linear policy that is solved on the training split."""
    env = training_env(config, market, splits, (0,))
    return solved_weights(market, config.environment, config.mandate, env.first, env.last, simulate_members)
