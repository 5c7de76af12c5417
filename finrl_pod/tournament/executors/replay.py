"""Executor that repeats a run: it trains in this process, in the order in which an event log has results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from finrl_pod.errors import RunError
from finrl_pod.tournament.assignment import Assignment
from finrl_pod.tournament.cohort import CohortTrainer
from finrl_pod.tournament.event_log import LoggedRun
from finrl_pod.tournament.executor import Event, Exhausted, Finished, ReportSamples
from finrl_pod.tournament.local_executor import NODE


class ReplayExecutor:
    """Takes every assignment at once, and gives results in the order of a log."""

    def __init__(self, trainer: CohortTrainer, logged: LoggedRun) -> None:
        self._trainer, self._results = trainer, list(logged.results)
        self._submitted: dict[tuple[tuple[int, ...], int], Assignment] = {}
        self.shards = self.free = len(logged.groups)

    def submit(self, assignment: Assignment) -> str:
        """Keep an assignment until it is its turn."""
        self._submitted[assignment.group.slots, assignment.number] = assignment
        return NODE

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Train the assignment that has the next result in the log, on as many samples as it had there."""
        if not self._results:
            return [Exhausted()]
        logged = self._results.pop(0)
        assignment = self._submitted.pop((logged.slots, logged.number), None)
        if assignment is None:
            raise RunError(
                f"the event log has a result of assignment {logged.number} of slots "
                f"{', '.join(map(str, logged.slots))}, which the repeated run has not made: it is of another version"
            )
        group = assignment.group.number
        repeated = dataclasses.replace(assignment, samples=logged.samples, seconds=math.inf)
        return [Finished(self._trainer.run(repeated, lambda samples: report(group, samples)), NODE)]

    def close(self) -> None:
        """Nothing to end."""
