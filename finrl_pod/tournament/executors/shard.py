"""A shard in a separate process: it receives encoded assignments and sends results or errors."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Protocol

from finrl_pod.errors import FinrlPodError
from finrl_pod.process import Parent, die_with_parent
from finrl_pod.tournament.assignment import Assignment, AssignmentResult
from finrl_pod.tournament.assignment_codec import decode_assignment, encode_result
from finrl_pod.user_files import own_failures


class Trainer(Protocol):
    """Trains assignments; keeps nothing between them. `CohortTrainer` is one."""

    def run(self, assignment: Assignment, report: Callable[[int], None]) -> AssignmentResult: ...


# Number of the shard -> its trainer. Must be picklable: it is called in the shard process.
MakeTrainer = Callable[[int], Trainer]

# First byte of a message from a shard.
READY = b"y"
SAMPLES = b"s"
RESULT = b"r"
REJECTED = b"e"
FAILED = b"f"


class Shard:
    """Makes a trainer and trains encoded assignments. Errors are returned as messages: exceptions do not cross.

    Errors of the project and of user code are REJECTED: another shard would raise them too; others are FAILED.
    """

    def __init__(self, make_trainer: MakeTrainer, number: int) -> None:
        self._make = partial(make_trainer, number)

    def start(self) -> bytes:
        """Make the trainer; returns READY or an error."""
        return self._message(self._start)

    def train(self, data: bytes, report: Callable[[int], None]) -> bytes:
        """Train an encoded assignment; returns an encoded result or an error."""
        return self._message(lambda: RESULT + encode_result(self._trainer.run(decode_assignment(data), report)))

    def _start(self) -> bytes:
        self._trainer = self._make()
        return READY

    def _message(self, work: Callable[[], bytes]) -> bytes:
        try:
            with own_failures():
                return work()
        except FinrlPodError as error:
            return REJECTED + str(error).encode()
        except Exception:  # noqa: BLE001  whatever it was, the scheduler gives the assignment to another shard
            return FAILED + traceback.format_exc().encode()


def serve(parent: Parent, make_trainer: MakeTrainer, number: int, pipe: Connection) -> None:
    """Entry point of a shard process: receives assignments and sends samples and results until the pipe closes."""
    die_with_parent(parent)
    shard = Shard(make_trainer, number)
    message = shard.start()
    with contextlib.suppress(EOFError, BrokenPipeError):
        pipe.send_bytes(message)
        while message[:1] in (READY, RESULT):
            message = shard.train(
                pipe.recv_bytes(), lambda samples: pipe.send_bytes(SAMPLES + samples.to_bytes(8, "little"))
            )
            pipe.send_bytes(message)
