"""Config of a training run on an environment without a market, and its environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from finrl_pod_envs.custom.episode_recorder import EpisodeRecorder, record_episodes
from finrl_pod_envs.custom.loader import load_env
from finrl_pod_envs.gymnasium_pool.drivers import check_pool
from finrl_pod_envs.gymnasium_pool.env import WORKER_SECONDS, GymnasiumVecEnv
from finrl_pod_envs.gymnasium_pool.lanes import PREFIX, is_gymnasium
from finrl_pod_envs.gymnasium_pool.parallel_lanes import is_parallel

from finrl_pod import user_files
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.rl.multi_agent.training import MultiAgentAlgorithm
from finrl_pod.settings.algorithm_configs import AgentConfig, DQNConfig, OffPolicyConfig
from finrl_pod.settings.algorithm_registry import ALGORITHMS, algorithm_info
from finrl_pod.settings.multi_agent import ExecutionMarketConfig, MakingMarketConfig, MarketConfig
from finrl_pod.settings.run import MAX_SEED, parse
from finrl_pod.settings.toml import build_record
from finrl_pod_app.setup.doctor import pick_device
from finrl_pod_app.setup.output_folder import JsonRecord
from finrl_pod_app.setup.overrides import parse_assignment, parse_setting

CUSTOM_ENVS = 16  # environments per member of file.py:Class; one batch steps them all
Setting = bool | int | float | str | list[int]
Environment: TypeAlias = GymnasiumVecEnv | EpisodeRecorder
NEVER = 1e9  # disables a limit
MINIBATCH = 64  # smallest number of items in one of the equal minibatches
ON_POLICY_SAMPLES = 2048
UPDATES_PER_SAMPLE: Mapping[str, int] = {"redq": 20}  # of its paper; other off-policy algorithms take 1


def is_custom(name: str) -> bool:
    """Whether `name` is file.py:Class or package.module:Class. Raises ConfigError if it is not gym:NAME either."""
    if name.startswith(PREFIX):
        return False
    if user_files.is_custom(name):
        return True
    raise ConfigError(
        f"the environment must be {PREFIX}NAME, such as gym:Hopper-v5, path/to/file.py:Class, or "
        f"package.module:Class, got {name!r}"
    )


def open_env(
    name: str,
    *,
    envs: int,
    members: Sequence[int] = (0,),
    workers: int = 0,
    seconds: float = WORKER_SECONDS,
    device: str = "cpu",
    arguments: Sequence[str] = (),
) -> Environment:
    """P x E environments, P = len(members). workers, seconds: passed to `GymnasiumVecEnv`.

    arguments: options of the environment, as name=value in TOML notation. Raises ConfigError, InputError, RunError or
    SetupError for an environment that cannot be made.
    """
    values = env_arguments(arguments)
    if is_custom(name) and not is_gymnasium(name):
        if is_parallel(name):
            raise ConfigError(
                f"{user_files.unpinned(name)} is an environment of several agents, or a function that makes one; add "
                "--many to train them all, and write a class for one agent: a gymnasium.Env, or a gymnasium.Wrapper "
                "whose __init__ calls the function"
            )
        return record_episodes(load_env(name, envs=envs, members=members, device=device, **values))
    return GymnasiumVecEnv(
        name, envs=envs, members=members, workers=workers, seconds=seconds, device=device, arguments=values
    )


def env_arguments(lines: Sequence[str]) -> dict[str, Any]:
    """Arguments of an environment from name=value in TOML notation. Raises InputError without an equals sign."""
    return dict(parse_assignment(line, "--env-arg") for line in lines)


def default_envs(name: str, workers: int) -> int:
    """Environments per member: one per worker, or a batch of a class that steps them all. Raises as `is_gymnasium`."""
    return CUSTOM_ENVS if is_custom(name) and not is_gymnasium(name) and not is_parallel(name) else workers or 1


@dataclass(frozen=True)
class TrainingConfig(JsonRecord):
    """All settings of a run.

    env: "gym:NAME", "file.py:Class" or the name of a built-in market, whose settings `market` has. many: algorithm of
    all agents of one environment; None for environments of one agent. is_shared: one network for all agents. env_args:
    arguments of the environment as name=value. steps: environment steps per member. envs: environments per member.
    workers: processes that step Gymnasium environments, 0 for this one. pipeline: "sync" alternates collecting and
    learning and is reproducible, "async" does both at the same time. device: where networks, updates and environments
    from a file run; Gymnasium environments are stepped on the CPU.
    """

    env: str
    agent: AgentConfig
    steps: int
    env_args: tuple[str, ...] = ()
    envs: int = 1
    workers: int = 0
    members: int = 1
    seed: int = 0
    threads: int = 1
    worker_timeout: float = 60.0
    pipeline: Literal["sync", "async"] = "sync"
    device: Literal["cpu", "cuda"] = "cpu"
    many: MultiAgentAlgorithm | None = None
    is_shared: bool = False
    market: MarketConfig | None = None

    @property
    def algorithm(self) -> str:
        """Name of the algorithm for messages."""
        return self.many or user_files.unpinned(self.agent.algorithm)


def config_from_dict(values: Mapping[str, Any]) -> TrainingConfig:
    """TrainingConfig of a saved config.json. Raises ConfigError for unknown settings, RunError for other files."""
    if missing := {"env", "agent", "steps"} - values.keys():
        raise RunError(f"config.json has no {min(missing)!r}, so it is not a run of train --env; name another folder")
    agent = parse({"agent": values["agent"]}, "config.json").agent
    fields = {field.name for field in dataclasses.fields(TrainingConfig)} - {"agent", "market"}
    known = {name: values[name] for name in fields & values.keys()}
    market: MarketConfig | None = None
    if isinstance(market_values := values.get("market"), dict):
        record = MakingMarketConfig if "makers" in market_values else ExecutionMarketConfig
        market = build_record(record, market_values, "config.json", section_name="market")
    return TrainingConfig(agent=agent, market=market, **{**known, "env_args": tuple(values.get("env_args", ()))})


def agent_config(
    algorithm: str, settings: Sequence[str], *, steps: int, envs: int, saved: AgentConfig | None = None
) -> AgentConfig:
    """Default settings of an algorithm for environments without a market, with overrides.

    settings: overrides as `name=value` in TOML notation. saved: settings of a run to continue, in place of the
    defaults, which depend on `steps`. Raises ConfigError for unknown algorithms and settings.
    """
    parse({"agent": {"algorithm": algorithm}}, "--algorithm")
    overrides = dict(map(parse_setting, settings))
    if saved is not None and saved.algorithm == algorithm:
        return parse({"agent": {**dataclasses.asdict(saved), **overrides}}, "--set").agent
    horizon = overrides["horizon"] if isinstance(overrides.get("horizon"), int) else None
    defaults = default_settings(algorithm, steps=steps, envs=envs, horizon=horizon)
    return parse({"agent": {"algorithm": algorithm, **defaults, **overrides}}, "--set").agent


def default_algorithm(env: str, arguments: Sequence[str] = ()) -> str:
    """ "dqn" for discrete actions, else "sac". Raises as `open_env`."""
    return "dqn" if open_env(env, envs=1, arguments=arguments).action_kind == "discrete" else "sac"


def default_settings(algorithm: str, *, steps: int, envs: int, horizon: int | None = None) -> dict[str, Setting]:
    """Default settings for control tasks; the defaults of the config records are for markets.

    horizon: steps of each environment per iteration, if set. Off-policy algorithms take one gradient step per sample,
    REDQ 20.
    """
    record = algorithm_info(algorithm).config_class
    custom_classes = (cls for cls in record.__mro__ if not cls.__module__.startswith("finrl_pod."))
    own_defaults = {name for cls in custom_classes for name in vars(cls).get("__annotations__", {})}
    names = {field.name for field in dataclasses.fields(record)} - own_defaults
    settings: dict[str, Setting] = {
        "policy": "mlp", "gamma": 0.99, "learning_rate": 3e-4, "learning_rate_schedule": "constant",
    }  # fmt: skip
    if issubclass(record, OffPolicyConfig):
        # Random actions for at most a twentieth of the run.
        settings |= {
            "hidden": [256, 256], "batch_size": 256, "buffer_size": max(min(steps, 1_000_000), 256, envs),
            "gradient_steps": UPDATES_PER_SAMPLE.get(algorithm, 1) * envs * max(1 if horizon is None else horizon, 1),
            "learning_starts": min(5_000, steps // 20),
            "scale_rewards": False, "max_grad_norm": NEVER,
        }  # fmt: skip
        if issubclass(record, DQNConfig):
            settings |= {
                "learning_rate": 1e-3, "tau": 0.01, "max_grad_norm": 10.0,
                "exploration_samples": max(steps // 5, 1),
            }  # fmt: skip
    else:
        horizon = max(ON_POLICY_SAMPLES // envs if horizon is None else horizon, 1)
        items = horizon * envs
        minibatches = next(n for n in range(max(items // MINIBATCH, 1), 0, -1) if items % n == 0)
        settings |= {
            "hidden": [64, 64], "horizon": horizon, "scale_rewards": False,
            "gae_lambda": 0.95, "entropy_coefficient": 0.0,
            "epochs": 10, "minibatches": minibatches, "target_kl": NEVER,
        }  # fmt: skip
        if not hasattr(record, "epochs"):  # A2C: one gradient step on a short rollout
            settings |= {"horizon": 8, "learning_rate": 7e-4, "gae_lambda": 1.0}
    return {name: value for name, value in settings.items() if name in names}


def check(config: TrainingConfig) -> None:
    """Raises ConfigError for a value out of range, SetupError for an unavailable device."""
    pick_device(config.device)
    for flag, value, minimum in (
        ("--steps", config.steps, 1), ("--envs", config.envs, 1), ("--members", config.members, 1),
        ("--threads", config.threads, 1), ("--seed", config.seed, 0),
    ):  # fmt: skip
        if value < minimum:
            raise ConfigError(f"{flag} must be at least {minimum}, got {value}")
    if config.many is not None and config.members > 1:
        raise ConfigError(f"--members is of environments with one agent, got {config.members} with many; omit it")
    if config.seed > MAX_SEED:
        raise ConfigError(f"--seed must be at most {MAX_SEED}, got {config.seed}")
    if config.market is None and is_custom(config.env) and config.workers:
        raise ConfigError(
            f"--workers is only valid with gym:NAME, got {user_files.unpinned(config.env)}; set --envs, or register an "
            "environment of Gymnasium and name it gym:MODULE:NAME"
        )
    check_pool(config.envs * config.members, config.workers, config.worker_timeout)
    if config.pipeline == "async" and not isinstance(config.agent, OffPolicyConfig):
        names = ", ".join(name for name, entry in ALGORITHMS.items() if entry.kind == "off-policy")
        raise ConfigError(
            f"--pipeline async needs an off-policy algorithm, got {config.agent.algorithm}; use one of {names}"
        )
