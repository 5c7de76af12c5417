"""Who steps the lanes: this process, or workers. A driver reads actions from its block and writes outcomes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import FinrlPodError, RunError
from finrl_pod_envs.gymnasium_pool.block import Block
from finrl_pod_envs.gymnasium_pool.lane import Lane, Plan, failure

Actions = Sequence[NDArray[np.float32]]


class Driver(Protocol):
    """block: what it works on. worker_restarts: how many workers have been replaced."""

    block: Block
    worker_restarts: int

    def begin(self, episodes: Mapping[int, tuple[int, Actions]]) -> None:
        """Lanes by place: the episode, and the actions that have already been taken in it."""
        ...

    def step(self) -> list[int]:
        """One step of every lane; returns the places of lanes whose step was lost, which wait for `begin`."""
        ...

    def close(self) -> None:
        """Give everything back; nothing is left running."""
        ...


class LocalDriver:
    """In this process, one lane after the other: the quickest for environments that are themselves quick.

    Raises RunError for what an environment raises.
    """

    worker_restarts = 0

    def __init__(self, plan: Plan) -> None:
        self.block, self._name = Block(len(plan.streams), plan.shapes.row, plan.shapes.columns), plan.name
        self._lanes = [Lane(plan.name, plan.shapes, stream, self.block, i) for i, stream in enumerate(plan.streams)]

    def begin(self, episodes: Mapping[int, tuple[int, Actions]]) -> None:
        try:
            for place, (episode, actions) in episodes.items():
                self._lanes[place].repeat(episode, actions)
        except Exception as error:
            raise self._told(error) from error

    def step(self) -> list[int]:
        try:
            for lane in self._lanes:
                lane.step()
        except Exception as error:
            raise self._told(error) from error
        return []

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()

    def _told(self, error: Exception) -> Exception:
        return error if isinstance(error, FinrlPodError) else RunError(f"{self._name} failed: {failure(error)}")
