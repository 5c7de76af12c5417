"""The environments that `train --env` can name: gym:NAME, file.py:Class, or package.module:Class."""

from __future__ import annotations

from collections.abc import Sequence

from finrl_pod_envs.custom.episode_recorder import EpisodeRecorder, record_episodes
from finrl_pod_envs.custom.loader import load_env
from finrl_pod_envs.gymnasium_pool.env import WORKER_SECONDS, GymnasiumVecEnv
from finrl_pod_envs.gymnasium_pool.spaces import PREFIX

from finrl_pod import user_files
from finrl_pod.errors import ConfigError

CUSTOM_ENVS = 16  # environments per member of file.py:Class, which steps them in one batch


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
    workers: int | None = None,
    seconds: float = WORKER_SECONDS,
    device: str = "cpu",
) -> GymnasiumVecEnv | EpisodeRecorder:
    """P x E environments, P = len(members). workers, seconds: of Gymnasium environments, see `GymnasiumVecEnv`.

    Raises ConfigError, InputError, RunError or SetupError for an environment that cannot be made.
    """
    if is_custom(name):
        return record_episodes(load_env(name, envs=envs, members=members, device=device))
    return GymnasiumVecEnv(name, envs=envs, members=members, workers=workers, seconds=seconds, device=device)
