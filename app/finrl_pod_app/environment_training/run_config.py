"""Config of a run to start or to continue, for the command line and Python."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finrl_pod.settings.algorithm_configs import OffPolicyConfig
from finrl_pod.user_files import is_file_reference, pin
from finrl_pod_app.environment_training.config import TrainingConfig, agent_config, default_algorithm, default_envs
from finrl_pod_app.environment_training.environments import algorithm_of_many
from finrl_pod_app.environment_training.folder import RunFolder

STEPS = 100_000
_log = logging.getLogger(__name__)


def training_config(
    env: str,
    out: Path,
    *,
    resume: bool = False,
    algorithm: str | None = None,
    settings: Sequence[str] = (),
    steps: int = STEPS,
    envs: int | None = None,
    workers: int = 0,
    many: bool = False,
    env_args: Sequence[str] = (),
    **options: Any,
) -> TrainingConfig:
    """Config of a new run, or of the run in `out` to resume, whose settings and arguments are kept by default.

    settings, env_args: name=value in TOML notation. envs: default: `default_envs`. many: train all agents of `env`.
    options: other fields of `TrainingConfig`. Raises as `agent_config` and `acting_env`.
    """
    if is_file_reference(env):
        env = pin(env)
    saved = RunFolder(out).config() if resume else None
    if saved is not None and not env_args:
        env_args = saved.env_args
    envs = default_envs(env, workers) if envs is None else envs
    joint_algorithm = algorithm_of_many(algorithm) if many else None
    if joint_algorithm is not None:
        algorithm = "maddpg" if joint_algorithm == "maddpg" else "ppo"
    agent = agent_config(
        algorithm or default_algorithm(env, env_args), settings, steps=max(steps, 1), envs=max(envs, 1),
        saved=None if saved is None else saved.agent,
    )  # fmt: skip
    if saved is not None and isinstance(agent, OffPolicyConfig) and saved.steps < steps > agent.buffer_size:
        _log.warning("the replay buffer keeps the %d transitions of the run that is continued", agent.buffer_size)
    return TrainingConfig(
        env=env, agent=agent, steps=steps, env_args=tuple(env_args), envs=envs, workers=workers, many=joint_algorithm,
        **options,
    )  # fmt: skip
