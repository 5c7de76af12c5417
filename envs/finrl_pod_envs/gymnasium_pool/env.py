"""P x E Gymnasium environments as one VecEnv of flat observation rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from finrl_pod.errors import ConfigError, InputError, RunError
from finrl_pod.random import key
from finrl_pod.types import EnvStep, Tensor
from finrl_pod_envs.gymnasium_pool.drivers import LocalDriver, PoolDriver, check_pool
from finrl_pod_envs.gymnasium_pool.lanes import NO_ARGUMENTS, LanePlan, make_gymnasium, shapes_of

WORKER_SECONDS = 60.0  # default timeout of a step
MAX_REPEATED_BYTES = 2**17  # actions of one episode that are kept to continue it
_log = logging.getLogger(__name__)


class Episode(NamedTuple):
    """A finished episode: its member, the sum of its rewards, its number of steps."""

    member: int
    total: float
    steps: int


class GymnasiumVecEnv:
    """Batched Gymnasium environments, stepped in this process or by workers.

    Observations are flat rows [P, E, S]. Actions are [P, E, C] in [-1, 1], rescaled to the bounds of the environment,
    or choices [P, E, 1] (`action_kind` "direct" or "discrete").

    Every lane (one environment) has its own seed stream and every episode a seed derived from its number. Results do
    not depend on the number of workers, and runs continue exactly: an unfinished episode is restarted and its actions
    are repeated. Actions beyond `MAX_REPEATED_BYTES` are not kept: a run continues such an episode with a new one. A
    step lost with its worker counts as truncated, with reward 0 and an unchanged observation; then a new episode
    starts. Numbers of an observation that are not finite are those of the observation before.
    """

    def __init__(
        self,
        name: str,
        *,
        envs: int = 1,
        workers: int | None = None,
        members: Sequence[int] = (0,),
        seconds: float = WORKER_SECONDS,
        device: torch.device | str = "cpu",
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
    ) -> None:
        """name, arguments: of `make_gymnasium`. envs: number per member. workers: processes that share all lanes; None:
        this process.

        seconds: timeout of a step. device: device of returned tensors; environments run on the CPU.
        Raises ConfigError for an unsupported environment, SetupError for a missing package.
        """
        if envs < 1:
            raise ConfigError(f"--envs must be 1 or more, got {envs}")
        if workers is not None:
            check_pool(len(members) * envs, workers, seconds)
        self.name = name
        self.members = len(members)
        self.envs = envs
        self.member_ids = tuple(members)
        self.device = torch.device(device)
        self._seconds = seconds
        self._workers = workers
        self._arguments = arguments
        probe = make_gymnasium(name, arguments=arguments)
        self.shapes = shapes_of(probe, name)
        probe.close()
        self.observation_size = self.shapes.row
        self.action_size = self.shapes.columns
        self.actions = self.shapes.choices
        self.action_kind = "discrete" if self.actions else "direct"
        self.groups = envs
        self.accounts = 1
        lanes = self.members * envs
        self._driver: LocalDriver | PoolDriver | None = None
        self._max_repeated = MAX_REPEATED_BYTES // (4 * self.action_size)  # steps
        # Of the current episodes; the actions of one with more than `_max_repeated` steps are dropped.
        self._lane_actions: list[list[NDArray[np.float32]]] = [[] for _ in range(lanes)]
        self._steps = np.zeros(lanes, np.int64)
        self._total = np.zeros(lanes)
        self._episodes: list[Episode] = []

    @property
    def worker_restarts(self) -> int:
        """Workers replaced so far."""
        return 0 if self._driver is None else self._driver.worker_restarts

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers; empty without workers."""
        return [] if self._driver is None else list(self._driver.pids)

    def reset(self, seed: int) -> Tensor:
        """Start the first episode of every lane. Equal seeds give equal episodes."""
        self.close()
        self._start(seed)
        lanes = range(len(self._lane_actions))
        self._begin({lane: (0, []) for lane in lanes})
        return self._rows(self._running_driver().block.row)

    def step(self, action: Tensor) -> EnvStep:
        """Step by `action` [P, E, C]. Raises InputError for another shape; NaN and infinities act as 0."""
        driver = self._running_driver()
        expected_shape = (self.members, self.envs, self.action_size)
        if action.shape != expected_shape:
            raise InputError(f"an action must have shape {expected_shape}, got {tuple(action.shape)}")
        block = driver.block
        block.action[:] = action.detach().reshape(len(self._lane_actions), -1).cpu().numpy()
        if not np.isfinite(block.action).all():
            # Actions of a diverged member (its loss is NaN, too): replaced by 0.
            block.action[~np.isfinite(block.action)] = 0
        last_rows = block.row.copy()
        lost_lanes = driver.step()
        for lane in lost_lanes:
            block.final[lane] = last_rows[lane]
            block.reward[lane] = 0.0
            block.terminated[lane] = False
            block.truncated[lane] = True
        if lost_lanes:
            self._begin({lane: (int(block.episode[lane]) + 1, []) for lane in lost_lanes})
        self._record(lost_lanes)
        shape = (self.members, self.envs)
        return EnvStep(
            observation=self._rows(block.row),
            reward=self._to_device(block.reward.astype(np.float32)).view(shape),
            terminated=self._to_device(block.terminated.copy()).view(shape),
            truncated=self._to_device(block.truncated.copy()).view(shape),
            final_observation=self._rows(block.final),
        )

    def episodes(self) -> list[Episode]:
        """Episodes finished since the last call, without those lost with a worker."""
        episodes = self._episodes
        self._episodes = []
        return episodes

    def close(self) -> None:
        """Stop the workers; `reset` starts new ones. Warns of observations that were not finite."""
        if self._driver is not None:
            if gaps := int(self._driver.block.gaps.sum()):
                _log.warning(
                    "%d observations of %s had numbers that were not finite; those of the observation before stood in",
                    gaps,
                    self.name,
                )
            self._driver.close()
            self._driver = None

    # ------------------------------------------------------------------ exact continuation

    def checkpoint(self) -> dict[str, Tensor]:
        """State of all episodes (seed, numbers, steps and actions taken): name -> CPU tensor."""
        longest = max(map(len, self._lane_actions))
        action_table = np.zeros((len(self._lane_actions), longest, self.action_size), np.float32)
        for i, actions in enumerate(self._lane_actions):
            action_table[i, : len(actions)] = np.asarray(actions, dtype=np.float32).reshape(-1, self.action_size)
        return {
            "seed": torch.tensor(self._seed),
            "episode": torch.from_numpy(self._running_driver().block.episode.copy()),
            "length": torch.from_numpy(self._steps.copy()),
            "taken": torch.from_numpy(action_table),
            "total": torch.from_numpy(self._total.copy()),
        }

    def resume(self, state: Mapping[str, Tensor]) -> Tensor:
        """Restore a `checkpoint`; returns the current observation. Episodes without their actions are given up.

        Raises KeyError for a missing entry, RunError for a checkpoint of another number of environments.
        """
        lengths = state["length"]
        action_table = state["taken"]
        if lengths.shape != (len(self._lane_actions),) or action_table.shape[2] != self.action_size:
            raise RunError(f"the checkpoint has {len(lengths)} environments, this run has {len(self._lane_actions)}")
        if self._driver is None or int(state["seed"]) != self._seed:
            self.close()
            self._start(int(state["seed"]))
        is_repeatable = (lengths <= self._max_repeated).numpy()
        if not is_repeatable.all():
            _log.warning(
                "%d episodes of %s are too long to be continued after an interruption; new ones start",
                (~is_repeatable).sum(),
                self.name,
            )
        self._steps = np.where(is_repeatable, lengths.numpy(), 0)
        self._total = np.where(is_repeatable, state["total"].numpy(), 0.0)
        self._lane_actions = [list(action_table[i, :n].numpy().copy()) for i, n in enumerate(self._steps)]
        self._episodes = []
        episodes = (state["episode"].numpy() + ~is_repeatable).tolist()
        self._begin({i: (episodes[i], actions) for i, actions in enumerate(self._lane_actions)})
        return self._rows(self._running_driver().block.row)

    # ------------------------------------------------------------------ lanes

    def _start(self, seed: int) -> None:
        streams = tuple(key(seed, member, f"environment {e}") for member in self.member_ids for e in range(self.envs))
        plan = LanePlan(self.name, self.shapes, streams, self._arguments)
        self._seed = seed
        self._driver = LocalDriver(plan) if self._workers is None else PoolDriver(plan, self._workers, self._seconds)
        self._lane_actions = [[] for _ in streams]
        self._steps[:] = 0
        self._total[:] = 0
        self._episodes = []

    def _begin(self, episodes: Mapping[int, tuple[int, Any]]) -> None:
        driver = self._running_driver()
        driver.begin(episodes)
        for lane, (episode, _) in episodes.items():
            if driver.block.episode[lane] != episode:  # the worker failed: a later one was started
                self._forget(lane)

    def _record(self, lost_lanes: Sequence[int]) -> None:
        """Record actions and rewards of the current episodes after a step."""
        block = self._running_driver().block
        episode_ends = block.terminated | block.truncated
        self._total += block.reward
        self._steps += 1
        for lane, has_ended in enumerate(episode_ends):
            if has_ended:
                if lane not in lost_lanes:
                    episode = Episode(lane // self.envs, float(self._total[lane]), int(self._steps[lane]))
                    self._episodes.append(episode)
                self._forget(lane)
            elif self._steps[lane] <= self._max_repeated:
                self._lane_actions[lane].append(block.action[lane].copy())
            else:
                self._lane_actions[lane] = []

    def _forget(self, lane: int) -> None:
        """Clear what is known of the current episode."""
        self._lane_actions[lane] = []
        self._steps[lane] = 0
        self._total[lane] = 0.0

    def _rows(self, rows: NDArray[np.float32]) -> Tensor:
        """Copy [L, S] to [P, E, S]."""
        return self._to_device(rows.copy()).view(self.members, self.envs, -1)

    def _to_device(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def _running_driver(self) -> LocalDriver | PoolDriver:
        if self._driver is None:
            raise InputError("call reset() before step()")
        return self._driver
