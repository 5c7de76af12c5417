"""Environments named as `file.py:Class`. The file is trusted code, see `finrl_pod.user_files`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch

from finrl_pod.errors import ConfigError, InputError, RunError
from finrl_pod.protocols import VecEnv
from finrl_pod.user_files import error_text, import_user_file, is_file_reference, stdout_to_stderr

ATTRIBUTES = (
    *("members", "envs", "member_ids", "observation_size", "action_size", "action_kind", "actions", "device"),
    *("reset", "step"),
)
KINDS = ("direct", "discrete")


def load_env_class(reference: str) -> type:
    """The class of file.py:Class. The file may import its neighbours in the same folder.

    Raises ConfigError for another form, InputError for a missing or failing file and for a missing class.
    """
    if not is_file_reference(reference):
        raise ConfigError(f"an environment of one's own is written as path/to/file.py:Class, got {reference!r}")
    path, _, name = reference.rpartition(":")
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    module = import_user_file(Path(path), f"the environment {reference}")
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type) and "reset" in dir(value)]
        hint = f"; it has {', '.join(sorted(classes))}" if classes else ""
        raise InputError(f"{path} has no class {name}{hint}")
    return found


def load_env(reference: str, *, envs: int, members: Sequence[int] = (0,), device: torch.device | str = "cpu") -> VecEnv:
    """An environment of the class, made as Class(envs=, members=, device=).

    Raises InputError as `load_env_class`, RunError if it cannot be made, ConfigError if it lacks what a learner needs.
    """
    made = load_env_class(reference)
    try:
        with stdout_to_stderr():
            env = made(envs=envs, members=tuple(members), device=torch.device(device))
    except Exception as error:
        raise RunError(
            f"{reference} cannot be made as {made.__name__}(envs={envs}, members={tuple(members)}, device=...): "
            f"{error_text(error)}"
        ) from error
    if missing := [name for name in ATTRIBUTES if getattr(env, name, None) is None]:
        raise ConfigError(f"{reference} has no {missing[0]}; see finrl-pod env new for a working environment")
    if env.action_kind not in KINDS:
        raise ConfigError(f"action_kind of {reference} must be {' or '.join(KINDS)}, got {env.action_kind!r}")
    if (env.members, env.envs) != (len(members), envs):
        raise ConfigError(
            f"{reference} has members={env.members} and envs={env.envs} after it was asked for {len(members)} and "
            f"{envs}; set them from the arguments of __init__"
        )
    return cast(VecEnv, env)


def source_sha256(reference: str) -> str:
    """Hash of the environment's file. Raises RunError if it cannot be read."""
    path = Path(reference.rpartition(":")[0])
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None
