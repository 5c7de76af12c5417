"""Environments named `file.py:Class` or `package.module:Class`: trusted code, see `finrl_pod.user_files`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, cast

import torch

from finrl_pod.errors import ConfigError, InputError, RunError
from finrl_pod.protocols import MultiAgentVecEnv, VecEnv
from finrl_pod.user_files import custom_source, error_text, is_custom, stdout_to_stderr, unpinned, user_object
from finrl_pod_envs.custom.joint_contract import check_joint

ATTRIBUTES = (
    *("members", "envs", "member_ids", "observation_size", "action_size", "action_kind", "actions", "device"),
    *("reset", "step"),
)
JOINT_ATTRIBUTES = (*ATTRIBUTES, "agents", "state_size")
KINDS = ("direct", "discrete")


def load_env_class(reference: str) -> type:
    """The class of file.py:Class (it may import its neighbours in the same folder), or of package.module:Class.

    Raises ConfigError for another name, InputError for a missing or failing file and for a missing class.
    """
    if not is_custom(reference):
        raise ConfigError(
            f"a custom environment is named path/to/file.py:Class or package.module:Class, got {reference!r}"
        )
    env_class = user_object(reference, f"the environment {reference}", again=True)
    if not isinstance(env_class, type):
        raise InputError(f"the environment {reference} must be a class, got {type(env_class).__name__}")
    return env_class


def load_env(
    reference: str, *, envs: int, members: Sequence[int] = (0,), device: torch.device | str = "cpu", **arguments: Any
) -> VecEnv:
    """An environment of the class, made as Class(envs=, members=, device=, **arguments).

    Raises InputError as `load_env_class`, RunError if it cannot be made, ConfigError if it lacks what a learner needs.
    """
    env = _made(reference, ATTRIBUTES, envs=envs, members=members, device=device, **arguments)
    return cast(VecEnv, env)


def load_joint_env(
    reference: str, *, envs: int, members: Sequence[int] = (0,), device: torch.device | str = "cpu", **arguments: Any
) -> MultiAgentVecEnv:
    """Markets of the class, made as in `load_env`. Raises as `load_env`, and RunError as `check_joint`."""
    env = cast(
        MultiAgentVecEnv,
        _made(reference, JOINT_ATTRIBUTES, envs=envs, members=members, device=device, **arguments),
    )
    check_joint(env, unpinned(reference))
    return env


def _made(
    reference: str,
    attributes: Sequence[str],
    *,
    envs: int,
    members: Sequence[int],
    device: torch.device | str,
    **arguments: Any,
) -> Any:
    """An environment with all `attributes`. Raises as `load_env`."""
    env_class = load_env_class(reference)
    display_name = unpinned(reference)
    try:
        with stdout_to_stderr():
            env = env_class(envs=envs, members=tuple(members), device=torch.device(device), **arguments)
    except Exception as error:
        call = f"{env_class.__name__}(envs={envs}, members={tuple(members)}, device=...)"
        raise RunError(f"{display_name} cannot be made as {call}: {error_text(error)}") from error
    if missing := [name for name in attributes if getattr(env, name, None) is None]:
        raise ConfigError(f"{display_name} has no {missing[0]}; `finrl-pod new environment NAME` writes a working one")
    if env.action_kind not in KINDS:
        raise ConfigError(f"action_kind of {display_name} must be {' or '.join(KINDS)}, got {env.action_kind!r}")
    _check_actions(display_name, env)
    if (env.members, env.envs) != (len(members), envs):
        raise ConfigError(
            f"{display_name} has members={env.members} and envs={env.envs} after it was asked for {len(members)} and "
            f"{envs}; set them from the arguments of __init__"
        )
    return env


def _check_actions(display_name: str, env: VecEnv | MultiAgentVecEnv) -> None:
    """Raises ConfigError for attributes of actions that contradict each other."""
    if env.action_kind == "discrete" and (env.actions < 1 or env.action_size != 1):
        raise ConfigError(
            f"{display_name} has discrete actions; they need actions of at least 1 and action_size = 1, got actions = "
            f"{env.actions} and action_size = {env.action_size}"
        )
    if env.action_kind == "direct" and env.actions:
        raise ConfigError(
            f'{display_name} has actions = {env.actions}, but action_kind = "direct": set action_kind = "discrete" for '
            f"choices 0 to {env.actions - 1}, or actions = 0 for numbers in [-1, 1]"
        )


def source_sha256(reference: str) -> str:
    """Hash of the file of the environment. Raises InputError if it cannot be read."""
    _, text = custom_source(reference, f"the environment {reference}")
    return hashlib.sha256(text.encode()).hexdigest()
