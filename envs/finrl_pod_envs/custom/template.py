"""Drift: keep a drifting point near zero.

An environment for `finrl-pod train --env FILE.py:CLASS`. Replace the dynamics by your own; the contract is checked by
`finrl-pod check FILE.py:CLASS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from finrl_pod.random import generators
from finrl_pod.types import EnvStep

STEPS = 64  # limit of an episode
LIMIT = 3.0  # an episode also ends when the point is farther away


class Drift:
    """P x E points on a line, each with a velocity that is drawn at the start of its episode.

    observation: position and velocity. action: a push in [-1, 1]. reward: minus the squared position.
    """

    observation_size = 2
    action_size = 1
    action_kind = "direct"  # actions in [-1, 1]; "discrete" for choices 0, 1, ..., `actions` - 1
    actions = 0  # number of choices, 0 unless discrete

    def __init__(self, *, envs: int = 16, members: Sequence[int] = (0,), device: torch.device | str = "cpu") -> None:
        """envs: environments of each agent. members: one id for each agent that is trained at the same time."""
        self.members = len(members)
        self.envs = envs
        self.member_ids = tuple(members)
        self.device = torch.device(device)

    def reset(self, seed: int) -> Tensor:
        """Start all episodes; the observation [P, E, 2]. All random numbers come from the seed."""
        self._streams = generators(seed, self.member_ids, "drift", self.device)  # one for each member
        self._position = torch.zeros(self.members, self.envs, device=self.device)
        self._velocity = self._draw()
        self._age = torch.zeros(self.members, self.envs, dtype=torch.int64, device=self.device)
        return self._observation()

    def step(self, action: Tensor) -> EnvStep:
        """Step all environments by `action` [P, E, 1]; those whose episode ends start a new one in the same call."""
        push = action[..., 0].clamp(-1.0, 1.0)
        self._position = self._position + 0.1 * (self._velocity + push + 0.1 * self._draw())
        self._age = self._age + 1
        reward = -self._position.square()
        terminated = self._position.abs() > LIMIT
        truncated = (self._age >= STEPS) & ~terminated  # out of time: the episode could have gone on
        final = self._observation()  # before the reset: its value counts where an episode is truncated

        episode_ends = terminated | truncated
        self._position = torch.where(episode_ends, 0.0, self._position)
        self._velocity = torch.where(episode_ends, self._draw(), self._velocity)
        self._age = torch.where(episode_ends, 0, self._age)
        return EnvStep(self._observation(), reward, terminated, truncated, final)

    def checkpoint(self) -> dict[str, Tensor]:
        """State of all episodes, for `--resume`. Optional, as `resume`."""
        streams = torch.stack([stream.get_state() for stream in self._streams])
        return {"position": self._position, "velocity": self._velocity, "age": self._age, "streams": streams}

    def resume(self, state: Mapping[str, Tensor]) -> Tensor:
        """Continue from a checkpoint after a reset with the same seed; returns the current observation."""
        self._position, self._velocity, self._age = (
            state[name].to(self.device) for name in ("position", "velocity", "age")
        )
        for stream, stream_state in zip(self._streams, state["streams"], strict=True):
            stream.set_state(stream_state.clone())
        return self._observation()

    def _observation(self) -> Tensor:
        return torch.stack([self._position, self._velocity], -1)

    def _draw(self) -> Tensor:
        """Standard normal numbers [P, E] from the stream of each member."""
        return torch.stack([torch.randn(self.envs, generator=s, device=self.device) for s in self._streams])
