"""A shard in a separate process: builds its trainer once, then trains one assignment after another."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Protocol

from finrl_pod.errors import FinrlPodError
from finrl_pod.process import Parent, die_with_parent
from finrl_pod.tournament.assignment import Assignment, AssignmentResult
from finrl_pod.tournament.executors.wire import decode_assignment, encode_result
from finrl_pod.user_files import own_failures


class Trainer(Protocol):
    """Trains assignments; keeps nothing between them. `CohortTrainer` is one."""

    def run(self, assignment: Assignment, report: Callable[[int], None]) -> AssignmentResult: ...


# Number of the shard -> its trainer. Must be picklable: it is called in the shard's process.
MakeTrainer = Callable[[int], Trainer]

# First byte of a message from a shard.
READY, SAMPLES, RESULT, REJECTED, FAILED = b"y", b"s", b"r", b"e", b"f"


def serve(parent: Parent, make_trainer: MakeTrainer, number: int, pipe: Connection) -> None:
    """Entry point of a shard's process: receives assignments and sends samples and results until the pipe closes.

    Project errors and those of the user's own code are sent as REJECTED, since another shard would raise them too;
    others as FAILED.
    """
    die_with_parent(parent)
    try:
        with own_failures():
            trainer = make_trainer(number)
        pipe.send_bytes(READY)
        while True:
            assignment = decode_assignment(pipe.recv_bytes())
            with own_failures():
                result = trainer.run(
                    assignment, lambda samples: pipe.send_bytes(SAMPLES + samples.to_bytes(8, "little"))
                )
            pipe.send_bytes(RESULT + encode_result(result))
    except (EOFError, BrokenPipeError):
        return
    except FinrlPodError as error:
        pipe.send_bytes(REJECTED + str(error).encode())
    except Exception:  # noqa: BLE001  whatever it was, the scheduler gives the assignment to another shard
        pipe.send_bytes(FAILED + traceback.format_exc().encode())
