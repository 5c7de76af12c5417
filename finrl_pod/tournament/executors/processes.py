"""Executor of shards in processes of this machine: one per device, or a given number."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from finrl_pod.errors import RunError, SetupError
from finrl_pod.process import STOP_SIGNALS, this_process
from finrl_pod.tournament.assignment import Assignment
from finrl_pod.tournament.assignment_codec import decode_result, encode_assignment
from finrl_pod.tournament.executor import Event, Finished, Lost, NodeJoined, ReportSamples, last_line
from finrl_pod.tournament.executors import shard as messages
from finrl_pod.tournament.executors.shard import MakeTrainer, serve

NODE = "processes"
MAX_FAILED_STARTS = 3  # in a row, of all shards together
WAIT_SECONDS = 1.0  # between two checks for shards that hang


@dataclass
class _Shard:
    number: int
    process: BaseProcess
    pipe: Connection
    ready: bool = False
    key: tuple[int, int] | None = None
    last_message_time: float = field(default_factory=time.monotonic)  # last sign of life


class ProcessExecutor:
    """Shards as child processes. One that dies or hangs is replaced, and its assignment is lost."""

    def __init__(self, make_trainer: MakeTrainer, shards: int, timeout: float = 600.0) -> None:
        """timeout: seconds without an iteration after which a shard counts as hanging."""
        self.shards = shards
        self._make_trainer = make_trainer
        self._timeout = timeout
        self._failed_starts = 0
        self._events: list[Event] = [NodeJoined(NODE, os.getpid())]
        self._shards = [self._start(number) for number in range(shards)]

    @property
    def pids(self) -> list[int]:
        return [shard.process.pid or 0 for shard in self._shards]

    @property
    def free(self) -> int:
        return sum(shard.ready and shard.key is None for shard in self._shards)

    def submit(self, assignment: Assignment) -> str:
        shard = next(shard for shard in self._shards if shard.ready and shard.key is None)
        shard.key = assignment.key
        shard.last_message_time = time.monotonic()
        with contextlib.suppress(OSError):  # a dead shard is noticed by `wait`
            shard.pipe.send_bytes(encode_assignment(assignment))
        return NODE

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Wait for messages of the shards for at most a second; replace those that died or hang."""
        if not self._events:
            by_pipe = {shard.pipe: shard for shard in self._shards}
            for pipe in wait(list(by_pipe), WAIT_SECONDS):
                assert isinstance(pipe, Connection)
                self._receive(by_pipe[pipe], report)
            for shard in self._shards:
                if time.monotonic() - shard.last_message_time > self._timeout and (
                    shard.key is not None or not shard.ready
                ):
                    self._replace(shard, f"it did nothing for {self._timeout:g} s")
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        for shard in self._shards:
            shard.process.kill()
            shard.process.join()
            shard.pipe.close()

    def _receive(self, shard: _Shard, report: ReportSamples) -> None:
        shard.last_message_time = time.monotonic()
        try:
            message = shard.pipe.recv_bytes()
        except (EOFError, OSError):
            self._replace(shard, "its process ended")
            return
        kind, content = message[:1], message[1:]
        if kind == messages.READY:
            shard.ready = True
            self._failed_starts = 0
        elif kind == messages.SAMPLES:
            assert shard.key is not None
            report(shard.key[0], int.from_bytes(content, "little"))
        elif kind == messages.RESULT:
            shard.key = None
            self._events.append(Finished(decode_result(content), NODE))
        elif kind == messages.REJECTED:
            raise RunError(content.decode())
        else:
            self._replace(shard, content.decode().strip())

    def _replace(self, shard: _Shard, reason: str) -> None:
        """Replace a shard by a new process. Raises SetupError if several in a row do not start."""
        shard.process.kill()
        shard.process.join()
        shard.pipe.close()
        if shard.key is not None:
            self._events.append(Lost(shard.key, reason))
        elif not shard.ready:
            self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise SetupError(f"no shard starts: {last_line(reason)}; use --engine local to see the error")
        self._shards[self._shards.index(shard)] = self._start(shard.number)

    def _start(self, number: int) -> _Shard:
        context = mp.get_context("spawn")
        pipe, child_end = context.Pipe()
        process = context.Process(target=serve, args=(this_process(), self._make_trainer, number, child_end))
        # Blocked before the start, so that the child ignores Ctrl-C and SIGTERM from its first instruction on.
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        child_end.close()
        return _Shard(number, process, pipe)
