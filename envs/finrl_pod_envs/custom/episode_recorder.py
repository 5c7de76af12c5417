"""Returns of the training episodes of any VecEnv."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from finrl_pod.protocols import CentralCriticVecEnv, JointVecEnv, ResumableVecEnv, VecEnv
from finrl_pod.types import EnvStep, Tensor
from finrl_pod_envs.custom.contract import check_start, check_step
from finrl_pod_envs.gymnasium_pool.env import Episode

_log = logging.getLogger(__name__)


class EpisodeRecorder:
    """A VecEnv that also tells which episodes have finished, as `protocols.PooledVecEnv` and `JointVecEnv`.

    agents, is_shared, critic_only: those of a `JointVecEnv`, else 0 and False. Idle steps count for no episode. Numbers
    of an observation [P, E, S] that are not finite repeat the observation before; `close` warns of them. Raises
    RunError if the first observation or step of the environment breaks the contract.
    """

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
        self.critic_only = env.critic_only if isinstance(env, CentralCriticVecEnv) else 0
        self.agents = env.agents if isinstance(env, JointVecEnv) else 0
        self.is_shared = isinstance(env, JointVecEnv) and env.is_shared
        self._episodes: list[Episode] = []
        self._is_checked = False  # whether the form of what a step returns was checked
        self._last: Any = None  # the observation that was returned last
        self._start()

    @property
    def worker_restarts(self) -> int:
        """Workers of the environment replaced so far."""
        return getattr(self.env, "worker_restarts", 0)

    def reset(self, seed: int) -> Any:
        self._start()
        observation = self.env.reset(seed)
        check_start(self.env, observation)
        self._last = observation
        return observation

    def step(self, action: Tensor) -> EnvStep:
        out = self.env.step(action)
        if not self._is_checked:
            check_step(self.env, out)
            self._is_checked = True
        if isinstance(out.observation, Tensor):
            self._gaps += (~out.final_observation.isfinite()).any(-1).sum()
            final = _without_gaps(out.final_observation, self._last)
            self._last = _without_gaps(out.observation, final)
            out = out._replace(observation=self._last, final_observation=final)
        is_part = ~out.idle.bool()
        self._total += out.reward
        self._steps += is_part
        episode_ends = (out.terminated | out.truncated) & is_part
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
        if gaps := int(self._gaps):
            _log.warning("%d observations had numbers that were not finite; those before stood in", gaps)
        close = getattr(self.env, "close", None)
        if callable(close):
            close()

    def _start(self) -> None:
        shape = (self.members, self.envs)
        self._total = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self._steps = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._episodes = []
        self._gaps = torch.zeros((), dtype=torch.int64, device=self.device)


class ResumableEpisodeRecorder(EpisodeRecorder):
    """An `EpisodeRecorder` of an environment with checkpoint() and resume()."""

    env: ResumableVecEnv

    def checkpoint(self) -> dict[str, Tensor]:
        """State of the environment and the sums of its unfinished episodes."""
        state = {f"env.{name}": x for name, x in self.env.checkpoint().items()}
        last = {"last": self._last} if isinstance(self._last, Tensor) else {}
        return {**state, **last, "total": self._total.clone(), "steps": self._steps.clone()}

    def resume(self, state: Mapping[str, Tensor]) -> Any:
        """Restore a checkpoint; returns the current observation."""
        self._start()
        self._total.copy_(state["total"])
        self._steps.copy_(state["steps"])
        observation = self.env.resume({k.removeprefix("env."): x for k, x in state.items() if k.startswith("env.")})
        self._last = _without_gaps(observation, state["last"].to(self.device)) if "last" in state else observation
        return self._last


def _without_gaps(rows: Tensor, last_rows: Tensor) -> Tensor:
    return torch.where(rows.isfinite(), rows, last_rows)


def record_episodes(env: VecEnv) -> EpisodeRecorder:
    """The environment with a record of its episodes; it can be continued exactly if the environment can."""
    return ResumableEpisodeRecorder(env) if isinstance(env, ResumableVecEnv) else EpisodeRecorder(env)
