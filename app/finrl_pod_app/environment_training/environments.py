"""The environments of a run: of one agent, or of the agents of markets, built-in ones, of PettingZoo or of users."""

from __future__ import annotations

from finrl_pod_envs.custom.episode_recorder import EpisodeRecorder, record_episodes
from finrl_pod_envs.custom.loader import load_joint_env
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv, ParallelMultiAgentEnv
from finrl_pod_envs.gymnasium_pool.lanes import Shapes, is_gymnasium
from finrl_pod_envs.gymnasium_pool.parallel_lanes import is_parallel
from finrl_pod_envs.multi_agent.execution import ExecutionMarket
from finrl_pod_envs.multi_agent.making import MakingMarket

from finrl_pod.errors import ConfigError
from finrl_pod.protocols import MultiAgentVecEnv
from finrl_pod.rl.multi_agent.training import LeagueView, MultiAgentAlgorithm, layout_of, training_view
from finrl_pod.settings.multi_agent import MakingMarketConfig, MarketConfig
from finrl_pod.user_files import unpinned
from finrl_pod_app.environment_training.config import (
    Environment,
    TrainingConfig,
    env_arguments,
    is_custom,
    open_env,
)

MANY: tuple[MultiAgentAlgorithm, ...] = ("ippo", "mappo", "maddpg")  # a league needs a symmetric market


def algorithm_of_many(algorithm: str | None) -> MultiAgentAlgorithm:
    """The algorithm of many agents of an environment of users. Raises ConfigError for another."""
    if algorithm is None:
        return "mappo"
    for name in MANY:
        if name == algorithm:
            return name
    raise ConfigError(f"--algorithm must be one of {', '.join(MANY)} with --many, got {algorithm!r}")


def training_env(config: TrainingConfig) -> Environment:
    """The environments that a run trains on. Raises as `acting_env`."""
    if config.many is None:
        return acting_env(config, envs=config.envs, workers=config.workers)
    market = open_markets(config, config.envs, workers=config.workers)
    if config.many == "league":
        market = open_markets(config, config.envs, members=tuple(range(market.agents)))
    return record_episodes(training_view(market, config.many, shared=config.is_shared, seed=config.seed))


def acting_env(config: TrainingConfig, *, envs: int, workers: int = 0) -> Environment:
    """Environments in which the trained agents of a run act. envs, workers: they replace the values of the config.

    Raises ConfigError, InputError, RunError or SetupError for an environment that cannot be made.
    """
    if config.many is not None:
        market = open_markets(config, envs, workers=workers)
        return record_episodes(layout_of(market, config.many, shared=config.is_shared))
    return open_env(
        config.env, envs=envs, workers=workers, members=range(config.members), seconds=config.worker_timeout,
        device=config.device, arguments=config.env_args,
    )  # fmt: skip


def league_view(env: Environment) -> LeagueView | None:
    """The view of a league behind the environments of a run, if there is one."""
    view = env.env if isinstance(env, EpisodeRecorder) else None
    return view if isinstance(view, LeagueView) else None


def agent_shapes(env: Environment) -> dict[str, Shapes | None]:
    """What an environment takes of each agent, by the name of the agent; None if it takes numbers in [-1, 1]."""
    if isinstance(env, GymnasiumVecEnv):
        return {"": env.shapes}
    market = getattr(env.env, "market", None)
    if isinstance(market, ParallelMultiAgentEnv):
        return dict(market.agent_shapes)
    return {str(m): None for m in range(env.agents or 1)}


def open_markets(
    config: TrainingConfig, envs: int, *, members: tuple[int, ...] = (0,), workers: int = 0
) -> MultiAgentVecEnv:
    """Environments of many agents. Raises as `acting_env`."""
    if config.market is not None:
        return make_market(config.market, envs=envs, members=members)
    arguments = env_arguments(config.env_args)
    if not is_custom(config.env) or is_gymnasium(config.env):
        raise ConfigError(
            f"--many takes path/to/file.py:Class or package.module:Class of an environment with several agents, got "
            f"{unpinned(config.env)}; omit it for one agent"
        )
    if is_parallel(config.env):
        return ParallelMultiAgentEnv(
            config.env, envs=envs, workers=workers, members=members, seconds=config.worker_timeout,
            device=config.device, arguments=arguments,
        )  # fmt: skip
    return load_joint_env(config.env, envs=envs, members=members, device=config.device, **arguments)


def make_market(config: MarketConfig, *, envs: int, members: tuple[int, ...] = (0,)) -> ExecutionMarket | MakingMarket:
    """A built-in market. envs: number of environments of each member."""
    if isinstance(config, MakingMarketConfig):
        return MakingMarket(config, envs=envs, members=members)
    return ExecutionMarket(config, envs=envs, members=members)
