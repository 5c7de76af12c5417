"""P x E Gymnasium or PettingZoo environments as one VecEnv or MultiAgentVecEnv of flat observation rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from finrl_pod.errors import ConfigError, InputError, RunError, shown
from finrl_pod.random import key
from finrl_pod.types import EnvStep, JointObservation, JointStep, Tensor
from finrl_pod.user_files import unpinned
from finrl_pod_envs.gymnasium_pool.drivers import LocalDriver, PoolDriver, check_pool
from finrl_pod_envs.gymnasium_pool.lanes import NO_ARGUMENTS, Block, LanePlan, Shapes, make_gymnasium, shapes_of
from finrl_pod_envs.gymnasium_pool.parallel_lanes import make_parallel, shapes_of_agents

WORKER_SECONDS = 60.0  # default timeout of a step
MAX_REPEATED_BYTES = 2**17  # actions of one episode that are kept to continue it
_log = logging.getLogger(__name__)


class Episode(NamedTuple):
    """A finished episode: its member, the sum of its rewards, its number of steps."""

    member: int
    total: float
    steps: int


class LanePool:
    """P x E lanes, each an environment of M agents (1, or several that act at once), in this process or by workers.

    Observations of an agent are a flat row of S numbers. Its actions are C numbers in [-1, 1], rescaled to the bounds
    of the environment, or one choice (`action_kind` "direct" or "discrete").

    Every lane has its own seed stream and every episode a seed derived from its number. Results do not depend on the
    number of workers, and runs continue exactly: an unfinished episode is restarted and its actions are repeated.
    Actions beyond `MAX_REPEATED_BYTES` are not kept: a run continues such an episode with a new one. A step lost with
    its worker counts as truncated, with reward 0 and an unchanged observation; then a new episode starts. Numbers of an
    observation that are not finite repeat the observation before.
    """

    def __init__(
        self,
        name: str,
        *,
        envs: int = 1,
        workers: int = 0,
        members: Sequence[int] = (0,),
        seconds: float = WORKER_SECONDS,
        device: torch.device | str = "cpu",
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
    ) -> None:
        """Start the environments. name, arguments: as `gymnasium.make` takes them. envs: number per member.

        workers: processes that share all lanes; 0: this process.

        seconds: timeout of one step. device: device of returned tensors; environments run on the CPU.
        Raises InputError for a name that is no text, ConfigError for an unsupported environment, SetupError for a
        missing package.
        """
        if not isinstance(name, str):
            raise InputError(
                f'name must be text, such as "gym:Hopper-v5" or "my_file.py:MyEnv", got {shown(name)}; give what the '
                "environment takes as arguments={...}"
            )
        if envs < 1:
            raise ConfigError(f"--envs must be 1 or more, got {envs}")
        check_pool(len(members) * envs, workers, seconds)
        self.name = name
        self.members = len(members)
        self.envs = envs
        self.member_ids = tuple(members)
        self.device = torch.device(device)
        self._seconds = seconds
        self._workers = workers
        self._arguments = arguments
        self.shapes = self._probe()
        self.observation_size = self.shapes.row
        self.action_size = self.shapes.columns
        self.actions = self.shapes.choices
        self.action_kind = "discrete" if self.actions else "direct"
        lanes = self.members * envs
        self._driver: LocalDriver | PoolDriver | None = None
        self._numbers = self.shapes.rows * self.action_size  # of the actions of a step
        self._max_repeated = MAX_REPEATED_BYTES // (4 * self._numbers)  # steps
        # Of the current episodes; the actions of one with more than `_max_repeated` steps are dropped.
        self._lane_actions: list[list[NDArray[np.float32]]] = [[] for _ in range(lanes)]
        self._steps = np.zeros(lanes, np.int64)
        self._total = np.zeros(lanes)
        self._episodes: list[Episode] = []

    def _probe(self) -> Shapes:
        """Sizes of the environment, which is made once to learn them."""
        probe = make_gymnasium(self.name, arguments=self._arguments)
        shapes = shapes_of(probe, unpinned(self.name))
        probe.close()
        return shapes

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or pickle has the episodes and workers of its own: it repeats the actions taken, as `resume` does."""
        make = partial(
            type(self),
            self.name,
            envs=self.envs,
            workers=self._workers,
            members=self.member_ids,
            seconds=self._seconds,
            device=self.device,
            arguments=dict(self._arguments),
        )
        episodes = {} if self._driver is None else self.checkpoint()
        return make, (), {name: x.numpy() for name, x in episodes.items()} or None

    def __setstate__(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._restore({name: torch.tensor(x) for name, x in state.items()})

    @property
    def worker_restarts(self) -> int:
        """Workers replaced so far."""
        return 0 if self._driver is None else self._driver.worker_restarts

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers; empty without workers."""
        return [] if self._driver is None else list(self._driver.pids)

    def close(self) -> None:
        """Stop the workers; `reset` starts new ones. Warns of observations that were not finite."""
        if self._driver is not None:
            if gaps := int(self._driver.block.gaps.sum()):
                _log.warning(
                    "%d observations of %s had numbers that were not finite; those of the observation before stood in",
                    gaps,
                    unpinned(self.name),
                )
            self._driver.close()
            self._driver = None

    def checkpoint(self) -> dict[str, Tensor]:
        """State of all episodes (seed, numbers, steps and actions taken): name -> CPU tensor."""
        longest = max(map(len, self._lane_actions))
        action_table = np.zeros((len(self._lane_actions), longest, self._numbers), np.float32)
        for i, actions in enumerate(self._lane_actions):
            action_table[i, : len(actions)] = np.asarray(actions, dtype=np.float32).reshape(-1, self._numbers)
        return {
            "seed": torch.tensor(self._seed),
            "episode": torch.from_numpy(self._running_driver().block.episode.copy()),
            "length": torch.from_numpy(self._steps.copy()),
            "taken": torch.from_numpy(action_table),
            "total": torch.from_numpy(self._total.copy()),
        }

    def _restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `checkpoint`. Episodes without their actions are given up.

        Raises KeyError for a missing entry, RunError for a checkpoint of another number of environments.
        """
        lengths = state["length"]
        action_table = state["taken"]
        if lengths.shape != (len(self._lane_actions),) or action_table.shape[2] != self._numbers:
            raise RunError(f"the checkpoint has {len(lengths)} environments, this run has {len(self._lane_actions)}")
        if self._driver is None or int(state["seed"]) != self._seed:
            self._open(int(state["seed"]))
        is_repeatable = (lengths <= self._max_repeated).numpy()
        if not is_repeatable.all():
            _log.warning(
                "%d episodes of %s are too long to be continued after an interruption; new ones start",
                (~is_repeatable).sum(),
                unpinned(self.name),
            )
        self._steps = np.where(is_repeatable, lengths.numpy(), 0)
        self._total = np.where(is_repeatable, state["total"].numpy(), 0.0)
        self._lane_actions = [list(action_table[i, :n].numpy().copy()) for i, n in enumerate(self._steps)]
        self._episodes = []
        episodes = (state["episode"].numpy() + ~is_repeatable).tolist()
        self._begin({i: (episodes[i], actions) for i, actions in enumerate(self._lane_actions)})

    # ------------------------------------------------------------------ lanes

    def _open(self, seed: int) -> None:
        """Start the driver anew, without episodes."""
        self.close()
        streams = tuple(key(seed, member, f"environment {e}") for member in self.member_ids for e in range(self.envs))
        plan = LanePlan(self.name, self.shapes, streams, self._arguments)
        self._seed = seed
        self._driver = PoolDriver(plan, self._workers, self._seconds) if self._workers else LocalDriver(plan)
        self._lane_actions = [[] for _ in streams]
        self._steps[:] = 0
        self._total[:] = 0
        self._episodes = []

    def _begin_all(self, seed: int) -> None:
        """Start the first episode of every lane."""
        self._open(seed)
        self._begin({lane: (0, []) for lane in range(len(self._lane_actions))})

    def _begin(self, episodes: Mapping[int, tuple[int, Any]]) -> None:
        driver = self._running_driver()
        driver.begin(episodes)
        for lane, (episode, _) in episodes.items():
            if driver.block.episode[lane] != episode:  # the worker failed: a later one was started
                self._forget(lane)

    def _advance(self, action: Tensor, expected_shape: tuple[int, ...]) -> Block:
        """Step all lanes by an action. Raises InputError for another shape; NaN and infinities act as 0."""
        driver = self._running_driver()
        if action.shape != expected_shape:
            raise InputError(f"an action must have shape {expected_shape}, got {tuple(action.shape)}")
        block = driver.block
        block.action[:] = action.detach().reshape(block.action.shape).cpu().numpy()
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
            block.over[lane] = True
        if lost_lanes:
            self._begin({lane: (int(block.episode[lane]) + 1, []) for lane in lost_lanes})
        self._record(lost_lanes)
        return block

    def _record(self, lost_lanes: Sequence[int]) -> None:
        """Record actions and rewards of the current episodes after a step."""
        block = self._running_driver().block
        with np.errstate(over="ignore"):  # such episodes are excluded from scores
            self._total += block.reward.sum(1)
        self._steps += 1
        for lane, has_ended in enumerate(block.over):
            if has_ended:
                if lane not in lost_lanes:
                    episode = Episode(lane // self.envs, float(self._total[lane]), int(self._steps[lane]))
                    self._episodes.append(episode)
                self._forget(lane)
            elif self._steps[lane] <= self._max_repeated:
                self._lane_actions[lane].append(block.action[lane].ravel().copy())
            else:
                self._lane_actions[lane] = []

    def _forget(self, lane: int) -> None:
        """Clear what is known of the current episode."""
        self._lane_actions[lane] = []
        self._steps[lane] = 0
        self._total[lane] = 0.0

    def _to_device(self, values: NDArray[Any], shape: tuple[int, ...]) -> Tensor:
        """A copy of an array in another shape, on the device."""
        return torch.from_numpy(values.copy()).to(self.device).view(shape)

    def _running_driver(self) -> LocalDriver | PoolDriver:
        if self._driver is None:
            raise InputError("call reset() before step()")
        return self._driver


class GymnasiumVecEnv(LanePool):
    """Batched Gymnasium environments: observations are rows [P, E, S], actions [P, E, C]. See `LanePool`."""

    def reset(self, seed: int) -> Tensor:
        """Start the first episode of every lane. Equal seeds give equal episodes."""
        self._begin_all(seed)
        return self._rows(self._running_driver().block.row)

    def step(self, action: Tensor) -> EnvStep:
        """Step by `action` [P, E, C]. Raises InputError for another shape; NaN and infinities act as 0."""
        shape = (self.members, self.envs)
        block = self._advance(action, (*shape, self.action_size))
        return EnvStep(
            observation=self._rows(block.row),
            reward=self._to_device(block.reward.astype(np.float32), shape),
            terminated=self._to_device(block.terminated, shape),
            truncated=self._to_device(block.truncated, shape),
            final_observation=self._rows(block.final),
        )

    def episodes(self) -> list[Episode]:
        """Episodes finished since the last call, without those lost with a worker."""
        episodes = self._episodes
        self._episodes = []
        return episodes

    def resume(self, state: Mapping[str, Tensor]) -> Tensor:
        """Restore a `checkpoint`; returns the current observation. Raises KeyError and RunError as it does not fit."""
        self._restore(state)
        return self._rows(self._running_driver().block.row)

    def _rows(self, rows: NDArray[np.float32]) -> Tensor:
        return self._to_device(rows, (self.members, self.envs, self.observation_size))


class ParallelMultiAgentEnv(LanePool):
    """Batched PettingZoo environments whose M agents act at once, as a MultiAgentVecEnv. See `LanePool`.

    The state of a market is the observations of all agents. agent_shapes: sizes and bounds by the name of an agent.
    """

    def __init__(self, name: str, **options: Any) -> None:
        """name: file.py:NAME or package.module:NAME of a class or a function. Arguments as of `LanePool`."""
        super().__init__(name, **options)
        self.agents = self.shapes.agents
        self.state_size = self.agents * self.observation_size

    def _probe(self) -> Shapes:
        probe = make_parallel(self.name, self._arguments)
        self.agent_shapes = shapes_of_agents(probe, self.name)
        probe.close()
        return next(iter(self.agent_shapes.values())).of_agents(len(self.agent_shapes))

    def reset(self, seed: int) -> JointObservation:
        """Start the first episode of every lane. Equal seeds give equal episodes."""
        self._begin_all(seed)
        return self._observation(self._running_driver().block.row)

    def step(self, action: Tensor) -> JointStep:
        """Step by `action` [P, E, M, C]. Raises InputError for another shape; NaN and infinities act as 0."""
        shape = (self.members, self.envs, self.agents)
        block = self._advance(action, (*shape, self.action_size))
        self._episodes = []
        return JointStep(
            observation=self._observation(block.row),
            reward=self._to_device(block.reward.astype(np.float32), shape),
            terminated=self._to_device(block.terminated, shape),
            truncated=self._to_device(block.truncated, shape),
            final_observation=self._observation(block.final),
            idle=self._to_device(block.idle, shape),
        )

    def resume(self, state: Mapping[str, Tensor]) -> JointObservation:
        """Restore a `checkpoint`; returns the current observation. Raises KeyError and RunError as it does not fit."""
        self._restore(state)
        return self._observation(self._running_driver().block.row)

    def _observation(self, rows: NDArray[np.float32]) -> JointObservation:
        own = self._to_device(rows, (self.members, self.envs, self.agents, self.observation_size))
        return JointObservation(own, own.flatten(2))
