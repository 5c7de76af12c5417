"""Tasks with the interfaces of Isaac Gym, Isaac Lab and rsl_rl, and the habits of their real environments, on any
physics; `Points` is a small one. All draw from torch's global generator."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

STEPS, LIMIT = 12, 1.0


class Physics(Protocol):
    """N copies of a system. steps: the limit of an episode."""

    num_envs: int
    num_obs: int
    num_actions: int
    steps: int

    def move(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Step by actions [N, D]; rewards [N] and whether the task has ended [N] bool."""
        ...

    def renew(self, ids: Tensor) -> None:
        """Start new episodes of some."""
        ...

    def fill(self, observation: Tensor) -> None:
        """Write the observations [N, S]."""
        ...


class Points:
    """Points that drift like those of `custom.template.Drift`."""

    num_obs, num_actions, steps = 2, 1, STEPS

    def __init__(self, num_envs: int = 6) -> None:
        self.num_envs = num_envs
        self.position, self.velocity = torch.zeros(num_envs), torch.zeros(num_envs)

    def move(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        self.position += 0.2 * (self.velocity + actions[:, 0].clamp(-1, 1))
        return -self.position.square(), self.position.abs() > LIMIT

    def renew(self, ids: Tensor) -> None:
        self.position[ids] = 0.1 * torch.randn(len(ids))
        self.velocity[ids] = torch.randn(len(ids))

    def fill(self, observation: Tensor) -> None:
        observation[:, 0], observation[:, 1] = self.position, self.velocity


class _Task:
    """Buffers that are changed in place, and the age of episodes."""

    def __init__(self, physics: Physics | None = None) -> None:
        self.physics: Physics = Points() if physics is None else physics
        self.num_envs, self.num_obs = self.physics.num_envs, self.physics.num_obs
        self.num_actions, self.max_episode_length = self.physics.num_actions, self.physics.steps
        self.device = self.rl_device = torch.device("cpu")
        self.progress_buf = torch.zeros(self.num_envs, dtype=torch.int64)
        self.obs_buf = torch.zeros(self.num_envs, self.num_obs)
        self.rew_buf = torch.zeros(self.num_envs)

    def move(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the task has ended, and whether time is up, [N] each."""
        reward, lost = self.physics.move(actions)
        self.rew_buf[:] = reward
        self.progress_buf += 1
        return lost, self.progress_buf >= self.max_episode_length

    def renew(self, ids: Tensor) -> None:
        self.physics.renew(ids)
        self.progress_buf[ids] = 0

    def fill(self) -> Tensor:
        self.physics.fill(self.obs_buf)
        return self.obs_buf


class IsaacGymTask(_Task):
    """As tasks of IsaacGymEnvs: the reset of a done environment happens in the next step or in `reset_done`, and
    observations are only computed in steps. clip: whether a step returns the buffer or a clipped copy."""

    clip = True

    def __init__(self, physics: Physics | None = None) -> None:
        super().__init__(physics)
        self.reset_buf = torch.ones(self.num_envs, dtype=torch.int64)
        self.resets_in_steps = 0

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:
        lost, late = self.move(actions)
        if len(ids := self.reset_buf.nonzero().flatten()):
            self.resets_in_steps += 1
            self.reset_idx(ids)
        self.compute_observations()
        self.reset_buf[:] = (lost | late).long()
        time_outs = (self.progress_buf >= self.max_episode_length) & (self.reset_buf != 0) & ~lost
        return self.reset(), self.rew_buf, self.reset_buf, {"time_outs": time_outs}

    def compute_observations(self) -> None:
        self.fill()

    def reset(self) -> dict[str, Tensor]:
        return {"obs": self.obs_buf.clamp(-50, 50) if self.clip else self.obs_buf}

    def reset_idx(self, env_ids: Tensor) -> None:
        self.renew(env_ids)
        self.reset_buf[env_ids] = 0

    def reset_done(self) -> tuple[dict[str, Tensor], Tensor]:
        ids = self.reset_buf.nonzero().flatten()
        if len(ids):
            self.reset_idx(ids)
        return self.reset(), ids


class Box:
    """A space that has a shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class IsaacLabTask(_Task):
    """As Isaac Lab's environments: groups, resets inside `step`, one observation buffer. keep: `compute_final_obs`."""

    def __init__(self, physics: Physics | None = None, *, keep: bool) -> None:
        super().__init__(physics)
        self.keep, self.single_action_space = keep, Box(self.num_actions)

    def reset(self, seed: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if seed is not None:
            torch.manual_seed(seed)
        self.renew(torch.arange(self.num_envs))
        return {"policy": self.fill()}, {}

    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        lost, late = self.move(action)
        extras: dict[str, Any] = {}
        if len(ids := (lost | late).nonzero().flatten()):
            if self.keep:
                extras["final_obs"] = {"policy": self.fill().clone()}
            self.renew(ids)
        return {"policy": self.fill()}, self.rew_buf, lost, late, extras


class RslRlTask:
    """As environments of rsl_rl: done flags as integers, time-outs apart, observations by group."""

    def __init__(self, physics: Physics | None = None, *, keep: bool) -> None:
        self.inner = IsaacLabTask(physics, keep=keep)
        self.num_envs, self.num_actions, self.device = self.inner.num_envs, self.inner.num_actions, self.inner.device
        self.groups: dict[str, Tensor] = self.inner.reset()[0]

    def reset(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.groups, extras = self.inner.reset()
        return self.groups, extras

    def get_observations(self) -> dict[str, Tensor]:
        return self.groups

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:
        self.groups, reward, lost, late, extras = self.inner.step(actions)
        return self.groups, reward, (lost | late).long(), {**extras, "time_outs": late & ~lost}
