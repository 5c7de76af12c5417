"""A trainer that waits instead of training: results of a given duration and size, to measure everything around them."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from finrl_pod import random
from finrl_pod.tournament.active_returns import BASE
from finrl_pod.tournament.assignment import Assignment, AssignmentResult
from finrl_pod.types import AgentSnapshot, Normaliser, Score


class WaitingTrainer:
    """Sleeps for the seconds of an assignment; scores and weights are random numbers keyed by slot and number."""

    def __init__(
        self,
        seconds: Callable[[Assignment], float],
        parameters: int = 0,
        bars: int = 750,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """parameters: of each agent; its optimiser has twice as many. bars: of the validation split."""
        self._seconds, self._parameters, self._bars, self._sleep = seconds, parameters, bars, sleep

    def run(self, assignment: Assignment, report: Callable[[int], None] = lambda _: None) -> AssignmentResult:
        """Wait, and make results."""
        self._sleep(self._seconds(assignment))
        pods = len(assignment.group.slots)
        report(assignment.samples * pods)
        agents, scores, returns = [], [], {}
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
