"""Shards on virtual time, and a trainer that waits instead of training: they measure schedulers alone."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from finrl_pod import random
from finrl_pod.tournament.assignment import Assignment, AssignmentResult
from finrl_pod.tournament.executor import Event, Finished, Lost, ReportSamples
from finrl_pod.tournament.executors.shard import Trainer
from finrl_pod.tournament.ranking import BASE
from finrl_pod.types import AgentSnapshot, Normaliser, Score

# Assignment -> seconds that it takes on a shard of speed 1.
Duration = Callable[[Assignment], float]


class VirtualExecutor:
    """Shards that exist on paper. now: virtual seconds. busy: seconds that each shard has trained."""

    def __init__(
        self,
        trainer: Trainer,
        speeds: Sequence[float],
        duration: Duration = lambda _: 1.0,
        *,
        loss: float = 0.0,
        restart_seconds: float = 0.0,
        seed: int = 0,
    ) -> None:
        """speeds: speed of each shard. loss: probability of losing a shard during an assignment, at a uniform time.

        restart_seconds: time until another shard replaces it.
        """
        self.shards = len(speeds)
        self.now = 0.0
        self.busy = [0.0] * len(speeds)
        self._trainer = trainer
        self._speeds = speeds
        self._duration = duration
        self._loss = loss
        self._restart = restart_seconds
        self._random = np.random.default_rng(seed)
        self._idle = list(range(len(speeds)))
        # (time, serial number, shard, its assignment or None while it restarts, whether it is lost then)
        self._ends: list[tuple[float, int, int, Assignment | None, bool]] = []
        self._serial = 0

    @property
    def free(self) -> int:
        return len(self._idle)

    def submit(self, assignment: Assignment) -> str:
        shard = self._idle.pop(0)
        seconds = self._duration(assignment) / self._speeds[shard]
        lost = bool(self._random.random() < self._loss)
        if lost:
            seconds *= float(self._random.random())
        self.busy[shard] += seconds
        self._schedule(seconds, shard, assignment, lost)
        return f"virtual-{shard}"

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Advance to the next result, loss or restart."""
        self.now, _, shard, assignment, lost = heapq.heappop(self._ends)
        if assignment is not None and lost:
            self._schedule(self._restart, shard, None, False)
            return [Lost(assignment.key, "lost on virtual time")]
        self._idle = sorted([*self._idle, shard])
        if assignment is None:
            return []
        group = assignment.group.number
        result = self._trainer.run(assignment, lambda samples: report(group, samples))
        return [Finished(result, f"virtual-{shard}")]

    def close(self) -> None:
        """Nothing to end."""

    @property
    def busy_share(self) -> float:
        """Share of the shards' time until now in which they trained."""
        return sum(self.busy) / (self.shards * self.now)

    def _schedule(self, seconds: float, shard: int, assignment: Assignment | None, lost: bool) -> None:
        self._serial += 1
        heapq.heappush(self._ends, (self.now + seconds, self._serial, shard, assignment, lost))


class WaitingTrainer:
    """Sleeps for the seconds of an assignment; scores and weights are random numbers keyed by slot and number."""

    def __init__(
        self,
        seconds: Callable[[Assignment], float],
        parameters: int = 0,
        bars: int = 750,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """parameters: number per agent; its optimiser has twice as many. bars: length of the validation split."""
        self._seconds = seconds
        self._parameters = parameters
        self._bars = bars
        self._sleep = sleep

    def run(self, assignment: Assignment, report: Callable[[int], None] = lambda _: None) -> AssignmentResult:
        self._sleep(self._seconds(assignment))
        pods = len(assignment.group.slots)
        report(assignment.samples * pods)
        agents = []
        scores = []
        returns = {}
        for slot_init in assignment.slot_inits:
            rng = np.random.default_rng(random.key(assignment.seed, slot_init.slot, "waiting"))
            name = f"g{assignment.number:02d}s{slot_init.slot:02d}"
            parent = None if slot_init.kind == "reinit" else slot_init.parent
            age = assignment.samples + (assignment.parents[parent].samples if parent is not None else 0)
            weights = {"x": torch.from_numpy(rng.normal(size=self._parameters).astype(np.float32))}
            optimiser = {"m": weights["x"].clone(), "v": weights["x"] ** 2}
            values = dict(slot_init.hyperparameters)
            normaliser = Normaliser((), (), ())
            agents.append(AgentSnapshot(name, parent, {}, weights, optimiser, normaliser, values, age, "", 0, ""))
            scores.append(Score(name, parent, assignment.number, slot_init.slot, age, float(rng.normal()), values))
            returns[name] = rng.normal(size=self._bars) / 100
        return AssignmentResult(
            group=assignment.group.number,
            number=assignment.number,
            scores=tuple(scores),
            equity=np.exp(np.cumsum(np.stack(list(returns.values()), 1), 0)),
            returns={**returns, BASE: np.zeros(self._bars)},
            agents=tuple(agents),
            samples=assignment.samples * pods,
        )
