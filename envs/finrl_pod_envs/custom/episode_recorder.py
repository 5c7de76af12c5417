"""Returns of the training episodes of any VecEnv."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from finrl_pod.protocols import ResumableVecEnv, VecEnv
from finrl_pod.types import EnvStep, Tensor
from finrl_pod_envs.custom.contract import check_start, check_step
from finrl_pod_envs.gymnasium_pool.env import Episode


class EpisodeRecorder:
    """A VecEnv that also tells which episodes have finished, as `protocols.PooledVecEnv`.

    Raises RunError if the first observation or step of the environment breaks the contract.
    """

    worker_restarts = 0

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.members = env.members
        self.envs = env.envs
        self.member_ids = tuple(env.member_ids)
        self.observation_size = env.observation_size
        self.action_size = env.action_size
        self.action_kind = env.action_kind
        self.actions = env.actions
        self.device = env.device
        self._episodes: list[Episode] = []
        self._is_checked = False  # whether the form of what a step returns was checked
        self._start()

    def reset(self, seed: int) -> Any:
        self._start()
        observation = self.env.reset(seed)
        check_start(self.env, observation)
        return observation

    def step(self, action: Tensor) -> EnvStep:
        out = self.env.step(action)
        if not self._is_checked:
            check_step(self.env, out)
            self._is_checked = True
        self._total += out.reward
        self._steps += 1
        episode_ends = out.terminated | out.truncated
        if bool(episode_ends.any()):
            member_indices = episode_ends.nonzero()[:, 0].tolist()
            totals = self._total[episode_ends].tolist()
            steps = self._steps[episode_ends].tolist()
            self._episodes += [Episode(*values) for values in zip(member_indices, totals, steps, strict=True)]
            self._total.masked_fill_(episode_ends, 0)
            self._steps.masked_fill_(episode_ends, 0)
        return out

    def episodes(self) -> list[Episode]:
        """Episodes finished since the last call."""
        episodes = self._episodes
        self._episodes = []
        return episodes

    def close(self) -> None:
        """Close the environment, if it can be."""
        close = getattr(self.env, "close", None)
        if callable(close):
            close()

    def _start(self) -> None:
        shape = (self.members, self.envs)
        self._total = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self._steps = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._episodes = []


class ResumableEpisodeRecorder(EpisodeRecorder):
    """An `EpisodeRecorder` of an environment with checkpoint() and resume()."""

    env: ResumableVecEnv

    def checkpoint(self) -> dict[str, Tensor]:
        """State of the environment and the sums of its unfinished episodes."""
        state = {f"env.{name}": x for name, x in self.env.checkpoint().items()}
        return {**state, "total": self._total.clone(), "steps": self._steps.clone()}

    def resume(self, state: Mapping[str, Tensor]) -> Any:
        """Restore a checkpoint; returns the current observation."""
        self._start()
        self._total.copy_(state["total"])
        self._steps.copy_(state["steps"])
        return self.env.resume({k.removeprefix("env."): x for k, x in state.items() if k.startswith("env.")})


def record_episodes(env: VecEnv) -> EpisodeRecorder:
    """The environment with a record of its episodes; it can be continued exactly if the environment can."""
    return ResumableEpisodeRecorder(env) if isinstance(env, ResumableVecEnv) else EpisodeRecorder(env)
