"""What a scheduler needs from an executor: free shards, a way to submit assignments, and events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from finrl_pod.tournament.assignment import Assignment, AssignmentResult

# Environment steps that a group has taken since the last report.
ReportSamples = Callable[[int, int], None]


@dataclass(frozen=True)
class NodeJoined:
    """A machine has its first shard. pid: of the process that its shards belong to."""

    node: str
    pid: int


@dataclass(frozen=True)
class NodeLost:
    """A machine and all of its shards are gone."""

    node: str


@dataclass(frozen=True)
class Lost:
    """The shard that trained this assignment failed, died or hangs; the assignment must be submitted again.

    reason: for a person, of one line or a traceback.
    """

    key: tuple[int, int]
    reason: str


@dataclass(frozen=True, eq=False)
class Finished:
    """An assignment's result. node: that trained it."""

    result: AssignmentResult
    node: str


@dataclass(frozen=True)
class Exhausted:
    """The executor takes no more assignments: those that were submitted and have no result will not get one."""


Event = NodeJoined | NodeLost | Lost | Finished | Exhausted


class Executor(Protocol):
    """Trains assignments on shards. A shard trains one assignment at a time.

    Results may come in any order. An assignment is either finished or lost; a result that arrives for a lost one is
    dropped here or by the scheduler, which accepts one result per assignment.
    """

    @property
    def shards(self) -> int:
        """Number of shards wanted; fewer or more may be there while machines come and go."""
        ...

    @property
    def free(self) -> int:
        """Number of shards that wait for an assignment."""
        ...

    def submit(self, assignment: Assignment) -> str:
        """Start an assignment on a free shard; returns the name of its node."""
        ...

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Wait until something happens; report(group, samples) is called meanwhile.

        Returns nothing if only time has passed. Raises project errors of a shard, and SetupError where no shard can be
        started.
        """
        ...

    def close(self) -> None:
        """End all shards."""
        ...


def last_line(reason: str) -> str:
    """The last line of a traceback, which names the error."""
    lines = reason.strip().splitlines()
    return lines[-1].strip() if lines else "unknown reason"
