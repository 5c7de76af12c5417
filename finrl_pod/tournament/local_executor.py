"""Executor in this process: one shard, which trains while the scheduler waits."""

from __future__ import annotations

import os
from collections.abc import Sequence

from finrl_pod.tournament.assignment import Assignment
from finrl_pod.tournament.cohort import CohortTrainer
from finrl_pod.tournament.executor import Event, Finished, NodeJoined, ReportSamples

NODE = "local"


class LocalExecutor:
    """Trains assignments in this process, one after another."""

    shards = 1

    def __init__(self, trainer: CohortTrainer) -> None:
        self._trainer = trainer
        self._assignment: Assignment | None = None
        self._joined = False

    @property
    def free(self) -> int:
        """1 unless an assignment has been submitted."""
        return int(self._assignment is None)

    def submit(self, assignment: Assignment) -> str:
        """Take an assignment, which `wait` trains."""
        self._assignment = assignment
        return NODE

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Train the assignment."""
        if not self._joined:
            self._joined = True
            return [NodeJoined(NODE, os.getpid())]
        assert self._assignment is not None
        group = self._assignment.group.number
        result = self._trainer.run(self._assignment, lambda samples: report(group, samples))
        self._assignment = None
        return [Finished(result, NODE)]

    def close(self) -> None:
        """Nothing to end."""
