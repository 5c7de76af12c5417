"""P x E Gymnasium environments as one batched environment of flat rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from finrl_pod.errors import ConfigError, InputError, RunError
from finrl_pod.random import key
from finrl_pod.types import EnvStep, Tensor
from finrl_pod_envs.gymnasium_pool import pool
from finrl_pod_envs.gymnasium_pool.drivers import Driver, LocalDriver
from finrl_pod_envs.gymnasium_pool.lane import Plan
from finrl_pod_envs.gymnasium_pool.spaces import make_gymnasium, shapes_of

WORKER_SECONDS = 60.0  # longest step of a worker


class Episode(NamedTuple):
    """One that was played to its end: whose it was, the sum of its rewards, its steps."""

    member: int
    total: float
    steps: int


class GymnasiumVecEnv:
    """Flat rows [P, E, S]; actions [P, E, C] in [-1, 1], stretched to the environment's bounds, or choices [P, E, 1].

    Every lane has a seed stream of its own and every episode a seed by its number, so that what happens does not depend
    on who steps the lane, and a run is continued exactly: an unfinished episode is begun again and its actions
    repeated. `action_kind` is "direct" or "discrete".

    A step that was lost with its worker counts as a truncated one of reward 0 that led nowhere; a new episode begins.
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
    ) -> None:
        """name: "gym:Hopper-v5". envs: of a member. workers: processes that share all lanes, None for this process.

        seconds: a worker that takes longer for a step is replaced. device: where its tensors are; it is stepped on the
        CPU. Raises ConfigError for what cannot be stepped or driven, SetupError for a package that is missing.
        """
        if envs < 1:
            raise ConfigError(f"--envs must be 1 or more, got {envs}")
        if workers is not None:
            pool.check(len(members) * envs, workers, seconds)
        self.name, self.members, self.envs, self.member_ids = name, len(members), envs, tuple(members)
        self.device = torch.device(device)
        self._seconds, self._workers = seconds, workers
        probe = make_gymnasium(name)
        self.shapes = shapes_of(probe, name)
        probe.close()
        self.observation_size, self.action_size = self.shapes.row, self.shapes.columns
        self.actions = self.shapes.choices
        self.action_kind = "discrete" if self.actions else "direct"
        self.groups, self.accounts = envs, 1
        lanes = self.members * envs
        self._driver: Driver | None = None
        self._taken: list[list[NDArray[np.float32]]] = [[] for _ in range(lanes)]  # actions of the running episodes
        self._total = np.zeros(lanes)
        self._finished: list[Episode] = []
        self._nothing = torch.zeros(self.members, envs, device=self.device)

    @property
    def worker_restarts(self) -> int:
        """Workers that were lost and replaced."""
        return 0 if self._driver is None else self._driver.worker_restarts

    @property
    def pids(self) -> list[int]:
        """Processes of the workers; none when this process steps."""
        return list(getattr(self._driver, "pids", []))

    def reset(self, seed: int) -> Tensor:
        """The first episode of every lane. The same seed gives the same episodes."""
        self.close()
        self._start(seed)
        lanes = range(len(self._taken))
        self._begin({place: (0, []) for place in lanes})
        return self._rows(self._driver_of().block.row)

    def step(self, action: Tensor) -> EnvStep:
        """action: [P, E, C]. Raises InputError for another shape and for numbers that are none."""
        driver, wanted = self._driver_of(), (self.members, self.envs, self.action_size)
        if action.shape != wanted:
            raise InputError(f"an action must have shape {wanted}, got {tuple(action.shape)}")
        block = driver.block
        block.action[:] = action.detach().reshape(len(self._taken), -1).cpu().numpy()
        if not np.isfinite(block.action).all():
            # A broken member acts by what is no number: it is held still, and its own loss says that it broke.
            block.action[~np.isfinite(block.action)] = 0
        before = block.row.copy()
        lost = driver.step()
        for place in lost:
            block.final[place], block.reward[place] = before[place], 0.0
            block.terminated[place], block.truncated[place] = False, True
        if lost:
            self._begin({place: (int(block.episode[place]) + 1, []) for place in lost})
        self._count(lost)
        shape = (self.members, self.envs)
        return EnvStep(
            observation=self._rows(block.row),
            reward=self._here(block.reward.astype(np.float32)).view(shape),
            terminated=self._here(block.terminated.copy()).view(shape),
            truncated=self._here(block.truncated.copy()).view(shape),
            final_observation=self._rows(block.final),
            equity=self._nothing,
            turnover=self._nothing,
            cost=self._nothing,
        )

    def episodes(self) -> list[Episode]:
        """Those that were finished since the last call; a lost one is in no list."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """End the workers; `reset` starts them anew."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # ------------------------------------------------------------------ exact continuation

    def checkpoint(self) -> dict[str, Tensor]:
        """Seed, episodes and the actions taken in them: name -> CPU tensor."""
        lengths = [len(actions) for actions in self._taken]
        longest = max(lengths)
        taken = np.zeros((len(lengths), longest, self.action_size), np.float32)
        for i, actions in enumerate(self._taken):
            taken[i, : lengths[i]] = np.asarray(actions, dtype=np.float32).reshape(-1, self.action_size)
        return {
            "seed": torch.tensor(self._seed),
            "episode": torch.from_numpy(self._driver_of().block.episode.copy()),
            "length": torch.tensor(lengths),
            "taken": torch.from_numpy(taken),
            "total": torch.from_numpy(self._total.copy()),
        }

    def resume(self, state: Mapping[str, Tensor]) -> Tensor:
        """Go on from `checkpoint`; returns the observation that is to be answered.

        Raises KeyError for a part that is missing, RunError for a checkpoint of other lanes.
        """
        lengths, taken = state["length"], state["taken"]
        if lengths.shape != (len(self._taken),) or taken.shape[2] != self.action_size:
            raise RunError(f"the checkpoint holds {len(lengths)} environments and this run has {len(self._taken)}")
        if self._driver is None or int(state["seed"]) != self._seed:
            self.close()
            self._start(int(state["seed"]))
        self._taken = [list(taken[i, : int(n)].numpy().copy()) for i, n in enumerate(lengths)]
        self._total = state["total"].numpy().copy()
        self._finished = []
        episodes = state["episode"].tolist()
        self._begin({i: (episodes[i], actions) for i, actions in enumerate(self._taken)})
        return self._rows(self._driver_of().block.row)

    # ------------------------------------------------------------------ lanes

    def _start(self, seed: int) -> None:
        streams = tuple(key(seed, member, f"environment {e}") for member in self.member_ids for e in range(self.envs))
        plan = Plan(self.name, self.shapes, streams)
        self._seed = seed
        self._driver = (
            LocalDriver(plan) if self._workers is None else pool.PoolDriver(plan, self._workers, self._seconds)
        )
        self._taken = [[] for _ in streams]
        self._total[:] = 0
        self._finished = []

    def _begin(self, episodes: Mapping[int, tuple[int, Any]]) -> None:
        driver = self._driver_of()
        driver.begin(episodes)
        for place, (episode, _) in episodes.items():
            if driver.block.episode[place] != episode:  # another one had to be begun in its place
                self._taken[place], self._total[place] = [], 0.0

    def _count(self, lost: Sequence[int]) -> None:
        """Keep the books of running episodes, after a step."""
        block = self._driver_of().block
        done = block.terminated | block.truncated
        self._total += block.reward
        for place, over in enumerate(done):
            if not over:
                self._taken[place].append(block.action[place].copy())
                continue
            if place not in lost:
                steps = len(self._taken[place]) + 1
                self._finished.append(Episode(place // self.envs, float(self._total[place]), steps))
            self._taken[place], self._total[place] = [], 0.0

    def _rows(self, rows: NDArray[np.float32]) -> Tensor:
        """[L, S] -> [P, E, S], a copy."""
        return self._here(rows.copy()).view(self.members, self.envs, -1)

    def _here(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def _driver_of(self) -> Driver:
        if self._driver is None:
            raise InputError("the environment was never begun: call reset() before step()")
        return self._driver
