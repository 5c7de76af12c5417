"""Environments of other simulators as a VecEnv: VecTask of Isaac Gym, five-tuple of Isaac Lab, VecEnv of rsl_rl.

The N environments of a simulator become P x E = N without a copy: tensors stay on its device, and only observations
that its next step would overwrite are copied there. Time-outs become truncations. Random numbers come from the
simulator. A member therefore trains differently alone than in a population.

A simulator that resets inside a step loses the observation before the reset, unless it keeps it in
`extras["final_obs"]` (Isaac Lab: `compute_final_obs = True`). Without it the value of a truncated episode is computed
from the observation before its last step, as in rsl_rl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

import torch

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.types import EnvStep, Tensor

GROUP = "policy"  # observations of the actor
FINAL: Final = "final_obs"

Groups = Mapping[str, Tensor]


class Extras(TypedDict, total=False):
    """Extras of a step. time_outs: [N], episodes cut by a time limit; final_obs: observations before a reset."""

    time_outs: Tensor
    final_obs: Groups


class _SimulatorEnv:
    """Shared by the adapters: sizes, views [P, E, ...] of tensors [N, ...], and the copies that are needed."""

    action_kind = "direct"
    actions = 0

    def __init__(self, count: int, sizes: tuple[int, int], device: Any, members: Sequence[int]) -> None:
        """count: N. sizes: sizes of observations and actions. members: ids; their number P must divide N."""
        if not members or count % len(members):
            raise ConfigError(
                f"the number of members must divide the {count} environments of the simulator, got {len(members)}"
            )
        self.members = len(members)
        self.envs = count // len(members)
        self.member_ids = tuple(members)
        self.observation_size, self.action_size = sizes
        self.device = torch.device(device)
        self._count = count
        self._last: Tensor | None = None  # the observation that was returned last
        self._last_output: Tensor | None = None  # returned by the simulator in the last step

    def _actions(self, action: Tensor) -> Tensor:
        """[P, E, D] -> [N, D]. Raises InputError for another shape."""
        expected_shape = (self.members, self.envs, self.action_size)
        if tuple(action.shape) != expected_shape:
            raise InputError(f"an action must have shape {expected_shape}, got {tuple(action.shape)}")
        return action.detach().reshape(self._count, self.action_size)

    def _first(self, observation: Tensor) -> Tensor:
        """[N, S] -> [P, E, S]; a copy, as the first step may overwrite it."""
        self._last_output = None
        self._last = observation.clone()
        return self._view(self._last)

    def _next(self, observation: Tensor) -> Tensor:
        """[N, S] -> [P, E, S]; a copy if the simulator returns one buffer again and again, as its next step changes it.

        Two steps tell: tensors that are alive at the same time have different addresses.
        """
        last_output = self._last_output
        self._last_output = observation
        is_new_tensor = last_output is not None and last_output.data_ptr() != observation.data_ptr()
        self._last = observation if is_new_tensor else observation.clone()
        return self._view(self._last)

    def _view(self, x: Tensor) -> Tensor:
        return x.view(self.members, self.envs, *x.shape[1:])

    def _outcome(
        self, observation: Tensor, reward: Tensor, terminated: Tensor, truncated: Tensor, final: Tensor
    ) -> EnvStep:
        return EnvStep(
            self._next(observation),
            self._view(reward),
            self._view(terminated),
            self._view(truncated),
            self._view(final),
        )

    def _final(self, extras: Extras, group: str, observation: Tensor, episode_ends: Tensor) -> Tensor:
        """Observations [N, S] before the reset: those that the simulator kept, else the last ones before the step."""
        saved_observations = extras.get(FINAL)
        last_observation = self._last if saved_observations is None else saved_observations[group]
        if last_observation is None:
            return observation
        return torch.where(episode_ends.unsqueeze(-1), last_observation, observation)


class VecTaskEnv(_SimulatorEnv):
    """An Isaac Gym `VecTask` as a VecEnv. Actions are passed on as they are; the task clips them at `clip_actions`.

    Done environments are reset in the step that ends their episode by `reset_done`, so that no action is lost. Tasks
    that fill their observations only when they step are asked to by `compute_observations`, if they have it.
    """

    def __init__(self, task: Any, *, members: Sequence[int] = (0,)) -> None:
        """task: a `isaacgymenvs.tasks.base.vec_task.VecTask`."""
        super().__init__(task.num_envs, (task.num_obs, task.num_actions), task.rl_device, members)
        self.task = task

    def reset(self, seed: int) -> Tensor:
        """Start all episodes. Seeds the global generator of torch, from which tasks draw."""
        torch.manual_seed(seed)
        self.task.reset_idx(torch.arange(self._count, device=self.device))
        return self._first(self._current_observation())

    def step(self, action: Tensor) -> EnvStep:
        observations, reward, reset, extras = self.task.step(self._actions(action))
        episode_ends = reset != 0
        time_outs = extras.get("time_outs")
        truncated = torch.zeros_like(episode_ends) if time_outs is None else (time_outs != 0) & episode_ends
        final_observation = observations["obs"]
        following = final_observation
        if bool(episode_ends.any()):
            final_observation = final_observation.clone()
            following = self.task.reset_done()[0]["obs"]
            if FINAL not in extras and torch.equal(following[episode_ends], final_observation[episode_ends]):
                following = self._current_observation()
        final = extras[FINAL]["obs"] if FINAL in extras else final_observation
        final = torch.where(episode_ends.unsqueeze(-1), final, following)
        return self._outcome(following, reward, episode_ends & ~truncated, truncated, final)

    def _current_observation(self) -> Tensor:
        """The observation buffer [N, S] after the task has filled it."""
        if callable(compute := getattr(self.task, "compute_observations", None)):
            compute()
        observation: Tensor = self.task.reset()["obs"]
        return observation


class IsaacLabEnv(_SimulatorEnv):
    """An Isaac Lab environment as a VecEnv; the actor observes the group "policy"."""

    def __init__(self, task: Any, *, members: Sequence[int] = (0,)) -> None:
        """task: a `ManagerBasedRLEnv` or `DirectRLEnv` of Isaac Lab.

        Resets the environment, to see its observations. Raises ConfigError for a group that is not one tensor.
        """
        first = task.reset()[0].get(GROUP)
        if not isinstance(first, Tensor) or first.dim() != 2:
            raise ConfigError(
                f'the observation group "{GROUP}" must be one tensor [N, S]; concatenate its terms '
                "(concatenate_terms = True)"
            )
        super().__init__(task.num_envs, (first.shape[1], _width(task.single_action_space)), task.device, members)
        self.task = task

    def reset(self, seed: int) -> Tensor:
        """Start all episodes."""
        return self._first(self.task.reset(seed=seed)[0][GROUP])

    def step(self, action: Tensor) -> EnvStep:
        groups, reward, terminated, truncated, extras = self.task.step(self._actions(action))
        terminated = terminated.bool()
        truncated = truncated.bool()
        truncated = truncated & ~terminated  # both may be set in one step
        observation = groups[GROUP]
        final = self._final(extras, GROUP, observation, terminated | truncated)
        return self._outcome(observation, reward, terminated, truncated, final)


class RslRlEnv(_SimulatorEnv):
    """An environment of rsl_rl as a VecEnv; the actor's observations are those of the group "policy"."""

    def __init__(self, task: Any, *, members: Sequence[int] = (0,)) -> None:
        """task: a `rsl_rl.env.VecEnv`; `seed` and `reset` are called if it has them, as the wrapper of Isaac Lab."""
        first: Tensor = task.get_observations()[GROUP]
        super().__init__(task.num_envs, (first.shape[1], task.num_actions), task.device, members)
        self.task = task

    def reset(self, seed: int) -> Tensor:
        """Start all episodes; seeds the global generator of torch, from which environments draw."""
        torch.manual_seed(seed)
        for name, arguments in (("seed", (seed,)), ("reset", ())):
            method = getattr(self.task, name, None)
            if callable(method):
                method(*arguments)
        return self._first(self.task.get_observations()[GROUP])

    def step(self, action: Tensor) -> EnvStep:
        groups, reward, reset_flags, extras = self.task.step(self._actions(action))
        episode_ends = reset_flags != 0
        time_outs = extras.get("time_outs")
        truncated = torch.zeros_like(episode_ends) if time_outs is None else (time_outs != 0) & episode_ends
        observation: Tensor = groups[GROUP]
        final = self._final(extras, GROUP, observation, episode_ends)
        return self._outcome(observation, reward, episode_ends & ~truncated, truncated, final)


def _width(space: Any) -> int:
    """Numbers of an action of a space with a flat shape. Raises ConfigError for another."""
    shape = getattr(space, "shape", None)
    if shape is None or len(shape) != 1:
        raise ConfigError(f"actions must be a flat Box, the environment has {space}")
    return int(shape[0])
