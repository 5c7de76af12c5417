"""Trainers of shards that fail in given ways; the shards' processes import them."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from finrl_pod.errors import RunError
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.assignment import Assignment, AssignmentResult
from tests.tournament.small_tournament import trainer

LOOK_SECONDS = 0.05


class FaultyTrainer:
    """Trains like any other, after `fault` was called with the folder, the shard's number and the assignment."""

    def __init__(self, config: RunConfig, folder: Path, fault: Callable[..., None], number: int) -> None:
        self._trainer, self._folder, self._fault, self._number = trainer(config), folder, fault, number

    def run(self, assignment: Assignment, report: Callable[[int], None] = lambda _: None) -> AssignmentResult:
        self._fault(self._folder, self._number, assignment)
        return self._trainer.run(assignment, report)


def kill_once(folder: Path, number: int, assignment: Assignment) -> None:
    """SIGKILL to the shard itself at the second assignment of group 0, the first time."""
    if assignment.key == (0, 1) and _first_time(folder / "killed"):
        os.kill(os.getpid(), signal.SIGKILL)


def hang_once(folder: Path, number: int, assignment: Assignment) -> None:
    """Never return from the second assignment of group 0, the first time."""
    if assignment.key == (0, 1) and _first_time(folder / "hung"):
        while True:
            time.sleep(60)


def full_disk(folder: Path, number: int, assignment: Assignment) -> None:
    """No space left on the disk of shard 1."""
    if number == 1:
        with (folder / "full").open("a") as file:
            file.write("x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk_until_a_node_is_lost(folder: Path, number: int, assignment: Assignment) -> None:
    """`full_disk`; the first assignments wait for the file `go`, those of number 5 for the file `lost`."""
    while not (folder / ("lost" if assignment.number >= 5 else "go")).exists():
        time.sleep(LOOK_SECONDS)
    full_disk(folder, number, assignment)


def hang_from_the_third(folder: Path, number: int, assignment: Assignment) -> None:
    """Never return from any group's third assignment."""
    while assignment.number >= 2:
        time.sleep(60)


def reject(folder: Path, number: int, assignment: Assignment) -> None:
    """An error of the program's own, which every shard would raise."""
    raise RunError("the parent does not fit this agent; use its policy")


def healthy(folder: Path, number: int, assignment: Assignment) -> None:
    """No fault."""


def no_trainer(number: int) -> FaultyTrainer:
    """A shard that cannot start."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _first_time(marker: Path) -> bool:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
