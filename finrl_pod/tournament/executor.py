"""The interface of executors, and the executors that train in this process."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from finrl_pod.errors import RunError
from finrl_pod.tournament.assignment import Assignment, AssignmentResult
from finrl_pod.tournament.cohort import CohortTrainer
from finrl_pod.tournament.event_log import LoggedRun

# Environment steps that a group has taken since the last report.
ReportSamples = Callable[[int, int], None]
NODE = "local"


@dataclass(frozen=True)
class NodeJoined:
    """A machine has its first shard. pid: process id of the parent of its shards."""

    node: str
    pid: int


@dataclass(frozen=True)
class NodeLost:
    """A machine and all of its shards are gone."""

    node: str


@dataclass(frozen=True)
class Lost:
    """The shard that trained this assignment failed, died or hangs; the assignment must be submitted again.

    reason: text of one line, or a traceback.
    """

    key: tuple[int, int]
    reason: str


@dataclass(frozen=True, eq=False)
class Finished:
    """The result of an assignment. node: name of the machine that trained it."""

    result: AssignmentResult
    node: str


@dataclass(frozen=True)
class Exhausted:
    """The executor takes no more assignments. Pending ones get no result."""


Event = NodeJoined | NodeLost | Lost | Finished | Exhausted


class Executor(Protocol):
    """Trains assignments on shards. A shard trains one assignment at a time.

    Results may come in any order. An assignment is either finished or lost; a result that arrives for a lost one is
    dropped here or by the scheduler. One result per assignment counts.
    """

    @property
    def shards(self) -> int:
        """Desired number of shards; the actual number varies while machines come and go."""
        ...

    @property
    def free(self) -> int:
        """Number of shards that wait for an assignment."""
        ...

    def submit(self, assignment: Assignment) -> str:
        """Start an assignment on a free shard; returns the name of its node."""
        ...

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Wait for events; report(group, samples) is called meanwhile.

        Returns nothing if only time has passed. Raises project errors of a shard, and SetupError if no shard can be
        started.
        """
        ...

    def close(self) -> None:
        """End all shards."""
        ...


def last_line(reason: str) -> str:
    """The last line of a traceback: it names the error."""
    lines = reason.strip().splitlines()
    return lines[-1].strip() if lines else "unknown reason"


class LocalExecutor:
    """Trains assignments in this process, one after another."""

    shards = 1

    def __init__(self, trainer: CohortTrainer) -> None:
        self._trainer = trainer
        self._assignment: Assignment | None = None
        self._has_joined = False

    @property
    def free(self) -> int:
        """1 unless an assignment has been submitted."""
        return int(self._assignment is None)

    def submit(self, assignment: Assignment) -> str:
        """Take an assignment for `wait` to train."""
        self._assignment = assignment
        return NODE

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Train the assignment."""
        if not self._has_joined:
            self._has_joined = True
            return [NodeJoined(NODE, os.getpid())]
        assert self._assignment is not None
        group = self._assignment.group.number
        result = self._trainer.run(self._assignment, lambda samples: report(group, samples))
        self._assignment = None
        return [Finished(result, NODE)]

    def close(self) -> None:
        """Nothing to end."""


class ReplayExecutor:
    """Takes every assignment at once, and returns results in the order of a log."""

    def __init__(self, trainer: CohortTrainer, run_log: LoggedRun) -> None:
        self._trainer = trainer
        self._results = list(run_log.results)
        self._assignments: dict[tuple[tuple[int, ...], int], Assignment] = {}
        self.shards = self.free = len(run_log.groups)

    def submit(self, assignment: Assignment) -> str:
        """Store an assignment until its turn."""
        self._assignments[assignment.group.slots, assignment.number] = assignment
        return NODE

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Train the assignment that has the next result in the log, on as many samples as it had there."""
        if not self._results:
            return [Exhausted()]
        entry = self._results.pop(0)
        assignment = self._assignments.pop((entry.slots, entry.number), None)
        if assignment is None:
            raise RunError(
                f"the event log has a result of assignment {entry.number} of slots "
                f"{', '.join(map(str, entry.slots))}, and the repeated run has none: the log is of another version"
            )
        group = assignment.group.number
        repetition = dataclasses.replace(assignment, samples=entry.samples, seconds=math.inf)
        return [Finished(self._trainer.run(repetition, lambda samples: report(group, samples)), NODE)]

    def close(self) -> None:
        """Nothing to end."""
