"""The form of what markets with many agents return, checked in one step before training."""

from __future__ import annotations

from typing import Any

import torch

from finrl_pod.errors import RunError
from finrl_pod.protocols import MultiAgentVecEnv
from finrl_pod.types import JointObservation, JointStep, Tensor


def check_joint(env: MultiAgentVecEnv, name: str) -> None:
    """Reset and step markets once. Raises RunError for a part of another shape or type than the protocol asks for."""
    _check_observation(env, name, env.reset(0), "reset()")
    shape = (env.members, env.envs, env.agents)
    dtype = torch.int64 if env.action_kind == "discrete" else torch.float32
    out = env.step(torch.zeros(*shape, env.action_size, dtype=dtype, device=env.device))
    if not isinstance(out, JointStep):
        raise RunError(f"step() of {name} must return a JointStep, got {type(out).__name__}")
    _check_observation(env, name, out.observation, "step()")
    _check_observation(env, name, out.final_observation, "step()")
    _check_tensor(out.reward, shape, f"the reward of {name}")
    for flag in ("terminated", "truncated"):
        _check_tensor(getattr(out, flag), shape, f"{flag} of {name}", is_flag=True)


def _check_observation(env: MultiAgentVecEnv, name: str, observation: Any, method: str) -> None:
    if not isinstance(observation, JointObservation):
        kind = type(observation).__name__
        raise RunError(f"{method} of {name} must return observations as a JointObservation, got {kind}")
    _check_tensor(observation.own, (env.members, env.envs, env.agents, env.observation_size), f"own of {name}")
    _check_tensor(observation.state, (env.members, env.envs, env.state_size), f"state of {name}")


def _check_tensor(x: Any, shape: tuple[int, ...], subject: str, *, is_flag: bool = False) -> None:
    kind = "bool" if is_flag else "floating-point numbers"
    if not isinstance(x, Tensor):
        raise RunError(f"{subject} must be a tensor of {kind}, got {type(x).__name__}")
    if tuple(x.shape) != shape or (x.dtype != torch.bool if is_flag else not x.is_floating_point()):
        raise RunError(f"{subject} must have the shape {shape} and {kind}, got {tuple(x.shape)} and {x.dtype}")
